/* A stand-in for NVIDIA's management library with one GPU, as an old driver has
 * it: most functions are missing. Its behaviour is in FAKE_NVML. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char *b) { const char *e = getenv("FAKE_NVML"); return e && !strcmp(e, b); }

static unsigned int limit = 300000;
static int gpu;

int nvmlInit_v2(void) {
	if (is("mismatch")) return 18;
	if (is("no driver")) return 9;
	if (is("no permission")) return 4;
	if (is("crash")) abort();
	if (is("hang")) for (;;) pause();
	return 0;
}
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) {
	return r == 18 ? "Driver/library version mismatch" : r == 9 ? "Driver Not Loaded" : r == 4 ? "Insufficient Permissions" : r == 15 ? "GPU is lost" : "Some Error";
}
int nvmlSystemGetDriverVersion(char *s, unsigned int n) { snprintf(s, n, "418.226.00"); return 0; }
int nvmlDeviceGetCount_v2(unsigned int *n) { *n = 1; return 0; }
int nvmlDeviceGetCount(unsigned int *n) { return nvmlDeviceGetCount_v2(n); }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **d) { *d = &gpu; return is("lost") ? 15 : 0; }
int nvmlDeviceGetHandleByIndex(unsigned int i, void **d) { return nvmlDeviceGetHandleByIndex_v2(i, d); }
int nvmlDeviceGetHandleByUUID(const char *u, void **d) { *d = &gpu; return strcmp(u, "GPU-fake") ? 2 : 0; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned int n) { snprintf(s, n, "GPU-fake"); return 0; }
int nvmlDeviceGetName(void *d, char *s, unsigned int n) { snprintf(s, n, "Tesla V100-SXM2-32GB"); return 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned int *mw) { *mw = 55500; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *mj) { *mj = 1ull << 40; return 0; }
int nvmlDeviceGetPowerManagementLimit(void *d, unsigned int *mw) { *mw = limit; return 0; }
int nvmlDeviceGetPowerManagementLimitConstraints(void *d, unsigned int *a, unsigned int *b) { *a = 150000; *b = 300000; return 0; }
int nvmlDeviceSetPowerManagementLimit(void *d, unsigned int mw) { if (is("not root")) return 4; limit = mw; return 0; }
int nvmlDeviceGetPersistenceMode(void *d, int *on) { *on = 1; return 0; }
