package amd

import "testing"

func TestAnArchitectureIsNamedAsCompilersDo(t *testing.T) {
	for version, want := range map[string]string{"90402": "gfx942", "90010": "gfx90a", "100306": "gfx1036", "110501": "gfx1151", "90500": "gfx950"} {
		if n, ok := parseNode("simd_count 4\ngfx_target_version " + version); !ok || n.architecture != want {
			t.Errorf("%s: %+v, want %s", version, n, want)
		}
	}
}

func TestFunctionsThatPCIHasAreNotPartitions(t *testing.T) {
	top := topology{nodes: []node{{slot: "0000:05:00"}, {slot: "0000:05:00", function: 1}, {slot: "0000:06:00"}}}
	if got := top.of("0000:05:00.0", map[string]bool{"0000:05:00.0": true}); len(got) != 2 {
		t.Errorf("%+v, want the GPU and its partition", got)
	}
	both := map[string]bool{"0000:05:00.0": true, "0000:05:00.1": true}
	for _, address := range []string{"0000:05:00.0", "0000:05:00.1"} {
		if got := top.of(address, both); len(got) != 1 {
			t.Errorf("%s: %+v, want its own only", address, got)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("simd_count 416\nsimd_per_cu 4\ngfx_target_version 90010\nlocation_id 25344\ndomain 0\ndrm_render_minor 128\n")
	f.Add("0: 500Mhz\n1: 800Mhz *\n")
	f.Add("ue: 1\nce: 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		if n, ok := parseNode(text); ok && (n.computeUnits < 0 || n.renderMinor < 0 || n.function > 7 || n.slot == "") {
			t.Errorf("%+v", n)
		}
		if now, most := parseClocks(text); now < 0 || now > most {
			t.Errorf("%d of %d", now, most)
		}
		parseErrors(text)
		if n, pending, failed := parseBadPages(text); n == 0 && (pending || failed) || n > len(text) {
			t.Errorf("%d bad pages of %q", n, text)
		}
	})
}

// Some kernels count partitions as functions, others in the
// location's upper bits.
func TestPartitionsAreFoundInBothWaysOfCounting(t *testing.T) {
	for name, locations := range map[string][]string{
		"functions":  {"1280", "1281", "1287"},
		"upper bits": {"1280", "268436736", "4026533120"},
	} {
		var top topology
		for _, location := range locations {
			n, ok := parseNode("simd_count 152\nsimd_per_cu 4\ndomain 0\nlocation_id " + location)
			if !ok {
				t.Fatalf("%s: no GPU at %s", name, location)
			}
			top.nodes = append(top.nodes, n)
		}
		if got := top.of("0000:05:00.0", map[string]bool{"0000:05:00.0": true}); len(got) != 3 {
			t.Errorf("%s: %+v, want 3 partitions", name, got)
		}
	}
}
