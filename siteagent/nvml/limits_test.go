package nvml

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestAChildWithALimitToPutBackIsKept(t *testing.T) {
	c, dir := client(t, "good", Options{})
	if before, err := c.SetPowerLimit(t.Context(), "GPU-1", 400); err != nil || before != 700 {
		t.Fatalf("%g, %v", before, err)
	}
	c.Release()
	if err := c.RestorePowerLimit(t.Context(), "GPU-1"); err != nil {
		t.Error(err)
	}
	c.Release()
	until(t, "the child has ended", func() bool { return slices.Contains(notes(t, dir), "end") })
	if n := notes(t, dir); len(n) != 4 || n[2] != string(OpRestorePowerLimits) {
		t.Errorf("%q; want a start, set, restore and end", n)
	}
}

func TestLimitsOutliveACrashOfTheChild(t *testing.T) {
	c, dir := client(t, "good", Options{})
	if _, err := c.SetPowerLimit(t.Context(), "GPU-1", 400); err != nil {
		t.Fatal(err)
	}
	c.child.kill()
	<-c.child.done
	if _, err := c.Sample(t.Context()); code(err) != Crashed {
		t.Errorf("%v", err)
	}
	if _, err := c.Sample(t.Context()); err != nil {
		t.Error(err)
	}
	c.child.kill()
	if err := c.Close(); code(err) != Crashed && err != nil {
		t.Errorf("%v", err)
	}
	// Told with its first request, the second child knew what to put back.
	if n := notes(t, dir); !slices.Contains(n, string(OpSample)) {
		t.Errorf("%q", n)
	}
}

func TestCloseRestoresLimitsEvenWithoutAChild(t *testing.T) {
	c, dir := client(t, "good", Options{})
	if _, err := c.SetPowerLimit(t.Context(), "GPU-1", 400); err != nil {
		t.Fatal(err)
	}
	c.child.kill()
	<-c.child.done
	if _, err := c.Sample(t.Context()); code(err) != Crashed {
		t.Errorf("%v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n := notes(t, dir); !slices.Contains(n, string(OpRestorePowerLimits)) {
		t.Errorf("%q; nobody put the limit back", n)
	}
}

func TestCloseRestoresLimitsThoughTheChildFailedJustBefore(t *testing.T) {
	c, dir := client(t, "good", Options{})
	if _, err := c.SetPowerLimit(t.Context(), "GPU-1", 400); err != nil {
		t.Fatal(err)
	}
	for range 2 { // twice in a row: the next start would be held off
		c.child.kill()
		<-c.child.done
		if _, err := c.Sample(t.Context()); code(err) != Crashed {
			t.Fatal(err)
		}
		if c.failures < 2 {
			if err := c.start(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n := notes(t, dir); !slices.Contains(n, string(OpRestorePowerLimits)) {
		t.Errorf("%q; nobody put the limit back", n)
	}
}

func TestALimitThatIsKeptIsNotPutBack(t *testing.T) {
	c, dir := client(t, "good", Options{})
	if _, err := c.SetPowerLimit(t.Context(), "GPU-1", 400); err != nil {
		t.Fatal(err)
	}
	if err := c.KeepPowerLimit(t.Context(), "GPU-1", 700); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n := notes(t, dir); len(n) != 4 || n[3] != "end" {
		t.Errorf("%q; want a start, set, set and end", n)
	}
}

func TestAnAgentKilledLeavesNoLimitBehind(t *testing.T) {
	dir := t.TempDir()
	agent := exec.Command(os.Args[0], "--agent", dir)
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "set\n" {
		t.Fatalf("%q, %v", line, err)
	}
	_ = agent.Process.Kill()
	_ = agent.Wait()
	until(t, "the limit is put back", func() bool { return slices.Contains(notes(t, dir), "restored:GPU-1=700") })
	until(t, "the child has ended", func() bool { return slices.Contains(notes(t, dir), "end") })
}
