package checkpoint

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// Environment of a child process that dies at one of its disk operations.
const (
	crashDir = "CHECKPOINT_TEST_CRASH_DIR"
	crashAt  = "CHECKPOINT_TEST_CRASH_AT"
	// crashWork is what it does: rollbackWork if set, else work.
	crashWork = "CHECKPOINT_TEST_CRASH_WORK"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		crashChild(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// interposed calls before at each operation that changes the disk; an error
// takes the operation's place. Half of a write's bytes reach the file before
// its call. Nothing is really synced: neither a killed process nor a full disk
// can tell, and syncing takes most of the time.
func interposed(before func(op, path string) error) disk {
	d := realDisk
	d.create = func(path string) (file, error) {
		if err := before("create", path); err != nil {
			return nil, err
		}
		f, err := realDisk.create(path)
		return &interposedFile{f, path, before}, err
	}
	d.mkdir = func(path string) error {
		return errors.Join(before("mkdir", path), realDisk.mkdir(path))
	}
	d.rename = func(from, to string) error {
		if err := before("rename", from+" -> "+to); err != nil {
			return err
		}
		return realDisk.rename(from, to)
	}
	d.syncDir = func(path string) error {
		return before("syncDir", path)
	}
	d.remove = func(path string) error {
		if err := before("remove", path); err != nil {
			return err
		}
		return realDisk.remove(path)
	}
	return d
}

type interposedFile struct {
	file
	path   string
	before func(op, path string) error
}

func (f *interposedFile) Write(b []byte) (int, error) {
	n, err := f.file.Write(b[:len(b)/2])
	if err != nil {
		return n, err
	}
	if err := f.before("write", f.path); err != nil {
		return n, err
	}
	rest, err := f.file.Write(b[n:])
	return n + rest, err
}

func (f *interposedFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.file.WriteAt(b[:len(b)/2], off)
	if err != nil {
		return n, err
	}
	if err := f.before("write", f.path); err != nil {
		return n, err
	}
	rest, err := f.file.WriteAt(b[n:], off+int64(n))
	return n + rest, err
}

func (f *interposedFile) Sync() error { return f.before("sync", f.path) }

// unsyncedDisk is a disk that works.
var unsyncedDisk = interposed(func(string, string) error { return nil })

// work is what crashing and failing stores are in the middle of: two commits,
// two snapshots, one from memory and one made from it; the second prunes. announce is called after each.
func work(s *Store, announce func(string)) error {
	for v := uint64(4); v <= 5; v++ {
		if err := commit(s, v); err != nil {
			return err
		}
		announce(fmt.Sprint("commit ", v))
		snap := snapshot
		if v == 5 {
			snap = advance
		}
		if err := snap(s, v, KindCommit); err != nil {
			return err
		}
		announce(fmt.Sprint("snapshot ", v))
	}
	return nil
}

// crashChild works on a store and kills itself, as kill -9 does, before the
// operation whose number the environment names.
func crashChild(dir string) {
	at, err := strconv.Atoi(os.Getenv(crashAt))
	if err != nil {
		panic(err)
	}
	count := 0
	s, err := open(dir, quiet(), interposed(func(op, path string) error {
		if count++; count == at {
			fmt.Println("dies before", op, path)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}))
	do := work
	if os.Getenv(crashWork) != "" {
		do = rollbackWork
	}
	if err == nil {
		err = do(s, func(what string) { fmt.Println(what) })
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	os.Exit(0)
}

func TestKillAtAnyPointLeavesTheStateBeforeOrAfter(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	ok(t, filled(t, base, 3).Close())
	self := must(os.Executable())(t)
	for at := 1; ; at++ {
		dir := filepath.Join(t.TempDir(), "store")
		ok(t, os.CopyFS(dir, os.DirFS(base)))
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), crashDir+"="+dir, fmt.Sprintf("%s=%d", crashAt, at))
		out, err := cmd.Output()
		if err == nil {
			if at < 50 {
				t.Fatalf("the work took only %d operations: the test no longer sees them all", at-1)
			}
			t.Logf("killed at each of %d operations", at-1)
			return
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("operation %d: child ended with %v: %s", at, err, out)
		}
		afterKill(t, dir, out)
		if t.Failed() {
			t.Fatalf("operation %d: %s", at, out)
		}
	}
}

// afterKill checks that the store has everything that the child announced, at
// most one commit more, no damage, and goes on.
func afterKill(t *testing.T, dir string, out []byte) {
	commits, snap := uint64(3), uint64(1)
	for line := bufio.NewScanner(bytes.NewReader(out)); line.Scan(); {
		if v, is := strings.CutPrefix(line.Text(), "commit "); is {
			commits, _ = strconv.ParseUint(v, 10, 64)
		}
		if v, is := strings.CutPrefix(line.Text(), "snapshot "); is {
			snap, _ = strconv.ParseUint(v, 10, 64)
		}
	}
	s := must(open(dir, quiet(), unsyncedDisk))(t)
	defer func() { _ = s.Close() }()
	r := must(s.Recover())(t)
	defer r.Close()
	got, gotSnap := r.Latest().Version, r.Snapshot.Version
	if got < commits || got > commits+1 || gotSnap < snap || gotSnap > commits {
		t.Errorf("recovered version %d from snapshot %d; announced were %d and %d", got, gotSnap, commits, snap)
	}
	if len(r.Damage) > 0 {
		t.Errorf("damage: %v", r.Damage)
	}
	if left := staged(t, dir); len(left) > 0 {
		t.Errorf("staging holds %v", left)
	}
	check(t, s.Reader, r, gotSnap, got)
	ok(t, commit(s, got+1))
	ok(t, snapshot(s, got+1, KindCommit))
	again := must(s.Recover())(t)
	defer again.Close()
	check(t, s.Reader, again, got+1, got+1)
}

func TestFailingDiskLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	ok(t, filled(t, base, 3).Close())
	for at := 1; ; at++ {
		dir := filepath.Join(t.TempDir(), "store")
		ok(t, os.CopyFS(dir, os.DirFS(base)))
		count, failed := 0, ""
		s := must(open(dir, quiet(), interposed(func(op, path string) error {
			if count++; count == at {
				failed = op + " " + path
				return syscall.ENOSPC
			}
			return nil
		})))(t)
		announced := uint64(3)
		err := work(s, func(what string) {
			if v, is := strings.CutPrefix(what, "commit "); is {
				announced, _ = strconv.ParseUint(v, 10, 64)
			}
		})
		if failed == "" {
			ok(t, err)
			ok(t, s.Close())
			return
		}
		// Folders that could not be removed are the next start's work; everything
		// else must be reported and undone.
		if !strings.HasPrefix(failed, "remove") {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("%s failed, and the store said %v", failed, err)
			}
			if left := staged(t, dir); len(left) > 0 {
				t.Fatalf("%s failed: staging holds %v", failed, left)
			}
		}
		r := must(s.Recover())(t)
		got := r.Latest().Version
		visible := strings.HasPrefix(failed, "syncDir "+filepath.Join(dir, commitsDir))
		if got != announced && (!visible || got != announced+1) {
			t.Fatalf("%s failed: version %d, announced %d", failed, got, announced)
		}
		if len(r.Damage) > 0 {
			t.Fatalf("%s failed: damage %v", failed, r.Damage)
		}
		check(t, s.Reader, r, r.Snapshot.Version, got)
		r.Close()
		ok(t, commit(s, got+1))
		ok(t, s.Close())
	}
}

// TestEverythingIsSyncedBeforeItsRename stands for a loss of power, which no
// process can cause itself: what was not synced may be gone after it.
func TestEverythingIsSyncedBeforeItsRename(t *testing.T) {
	dir := t.TempDir()
	ok(t, filled(t, dir, 3).Close())
	unsynced := map[string]bool{} // files with unsynced bytes, folders with unsynced names
	renames := 0
	s := must(open(dir, quiet(), interposed(func(op, path string) error {
		switch op {
		case "create", "mkdir":
			unsynced[path], unsynced[filepath.Dir(path)] = true, true
		case "write":
			unsynced[path] = true
		case "sync", "syncDir":
			delete(unsynced, path)
		case "rename":
			from, to, _ := strings.Cut(path, " -> ")
			if filepath.Dir(filepath.Dir(to)) != dir || strings.Contains(to, stagingDir) {
				return nil // on its way out
			}
			renames++
			for p := range unsynced {
				if strings.HasPrefix(p, from) {
					t.Errorf("%s was not synced when %s appeared", p, to)
				}
			}
			unsynced[filepath.Dir(to)] = true
		}
		return nil
	})))(t)
	defer func() { _ = s.Close() }()
	ok(t, work(s, func(what string) {
		for _, sub := range []string{commitsDir, snapshotsDir} {
			if unsynced[filepath.Join(dir, sub)] {
				t.Errorf("%s was announced before its name was synced", what)
			}
		}
	}))
	if renames != 4 {
		t.Errorf("saw %d renames, want 4", renames)
	}
}

func TestFailedWritesAreNotForgotten(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir, 3)
	c := must(s.Begin(4))(t)
	if err := c.AddUpdate("porto/a", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if err := c.AddUpdate("porto/a", strings.NewReader("x")); err == nil {
		t.Error("a member was added twice")
	}
	if err := c.Finish(testManifest(4, KindCommit)); err == nil {
		t.Error("a commit with a failed update was finished")
	}
	c = must(s.Begin(4))(t)
	if err := c.AddUpdate("porto/a", brokenReader{}); !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "porto/a") {
		t.Errorf("AddUpdate: %v", err)
	}
	if err := c.Finish(testManifest(4, KindCommit)); !errors.Is(err, errBroken) {
		t.Errorf("Finish: %v", err)
	}
	if err := must(s.Begin(4))(t).Finish(Manifest{}); err == nil {
		t.Error("an empty manifest was committed")
	}
	if left := staged(t, dir); len(left) > 0 {
		t.Errorf("staging holds %v", left)
	}
	check(t, s.Reader, must(s.Recover())(t), 1, 3)
}

var errBroken = errors.New("broken")

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }
