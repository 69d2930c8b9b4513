package main

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
)

// asCommand makes the test's own binary the command.
const asCommand = "GIRASSOL_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func agent(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}

func TestTheAgentTakesTheSameArgumentsAsBefore(t *testing.T) {
	dir := t.TempDir()
	site := func(name string) []string {
		return []string{"--coordinator", "127.0.0.1:1", "--federation", "lm", "--site", name, "--data", dir}
	}
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"nothing":                           {nil, `required flag(s) "federation"`},
		"a command without --":              {append(site("porto"), "python"), `behind "--"`},
		"a site named as the subcommand":    {append(site("trainer"), "--log-format", "xml"), "--log-format"},
		"a trainer named as the subcommand": {append(site("porto"), "--log-format", "xml", "--", "trainer", "--data", "x"), "--log-format"},
		"no completion command":             {[]string{"completion"}, `behind "--"`},
		"a trainer named hardware":          {append(site("porto"), "--log-format", "xml", "--", "hardware", "-o", "json"), "--log-format"},
		"hardware in a format unknown":      {[]string{"hardware", "-o", "yaml"}, "want text or json"},
		"the trainer without a socket":      {[]string{"trainer"}, "no socket: set --socket or " + trainerv1.EnvSocket},
		"the trainer without a text":        {[]string{"trainer", "--socket", "/x"}, "no text to train on"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := agent(tc.args...)
			out, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), tc.says) {
				t.Errorf("%v, %q; want exit code 1 and %q", err, out, tc.says)
			}
		})
	}
}

func TestTheSubcommandTrainerAsksTheAgentForWorkAndEndsInOrder(t *testing.T) {
	dir, err := os.MkdirTemp("", "g") // a Unix socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	text := filepath.Join(dir, "text")
	if err := os.Mkdir(text, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(text, "a.txt"), bytes.Repeat([]byte("the quick brown fox "), 500), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "trainer.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 100)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Method + " " + r.URL.Path:
		default:
		}
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()

	cmd := agent("trainer", "--data", text, "--dim", "16", "--layers", "1", "--heads", "2", "--context", "32", "--batch", "2")
	cmd.Env = append(cmd.Env, trainerv1.EnvSocket+"="+socket, trainerv1.EnvWorkDir+"="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	for deadline := time.After(time.Minute); ; {
		select {
		case got := <-asked:
			if got == "GET /v1/task" {
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if err := <-exited; err != nil {
					t.Errorf("SIGTERM: %v\n%s", err, out.String())
				}
				return
			}
		case err := <-exited:
			t.Fatalf("it ended: %v\n%s", err, out.String())
		case <-deadline:
			_ = cmd.Process.Kill()
			<-exited
			t.Fatalf("it asked for no task\n%s", out.String())
		}
	}
}
