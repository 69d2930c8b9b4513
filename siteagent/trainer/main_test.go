package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	trainerv1 "girassol.dev/api/trainer/v1"
)

// The test binary plays the trainer when asked to.
func TestMain(m *testing.M) {
	if role := os.Getenv("TEST_TRAINER_ROLE"); role != "" {
		playTrainer(role)
	}
	goleak.VerifyTestMain(m)
}

func playTrainer(role string) {
	fmt.Println("socket", os.Getenv(trainerv1.EnvSocket), "work", os.Getenv(trainerv1.EnvWorkDir))
	switch {
	case role == "crash":
		fmt.Fprintln(os.Stderr, "cannot find the data")
		os.Exit(3)
	case role == "environment":
		for _, v := range os.Environ() {
			fmt.Println("variable", v)
		}
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case role == "polite":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		<-c
		fmt.Println("leaving")
		os.Exit(0)
	case role == "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case role == "glutton":
		fmt.Println("eating")
		var meals [][]byte
		for range 64 { // 1 GiB at most
			meal := make([]byte, 16<<20)
			for i := 0; i < len(meal); i += 4096 {
				meal[i] = 1
			}
			meals = append(meals, meal)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Hour)
		runtime.KeepAlive(meals)
	case role == "parent":
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "TEST_TRAINER_ROLE=stubborn")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			panic(err)
		}
		fmt.Println("child", child.Process.Pid)
		time.Sleep(time.Hour)
	case strings.HasPrefix(role, "deaf "): // the first one heeds nothing
		mark := strings.TrimPrefix(role, "deaf ")
		_, err := os.Stat(mark)
		first := err != nil
		if first {
			signal.Ignore(syscall.SIGTERM)
			fmt.Println("first")
			if err := os.WriteFile(mark, nil, 0o600); err != nil {
				panic(err)
			}
		}
		workOnce(first)
		time.Sleep(time.Hour)
	case strings.HasPrefix(role, "agent "): // supervises a trainer until it is killed
		s, err := NewSupervisor(SupervisorOptions{
			Command: []string{os.Args[0]}, Env: []string{"TEST_TRAINER_ROLE=stubborn"},
		})
		if err != nil {
			panic(err)
		}
		go func() { _ = s.Run(context.Background()) }()
		for s.State().PID == 0 || len(s.State().Tail) < 2 {
			time.Sleep(time.Millisecond)
		}
		if err := os.WriteFile(strings.TrimPrefix(role, "agent "), fmt.Append(nil, s.State().PID), 0o600); err != nil {
			panic(err)
		}
		fmt.Println("supervising")
		time.Sleep(time.Hour)
	}
	os.Exit(9)
}

// workOnce takes a task and, unless it is to ignore it, ends it.
func workOnce(ignore bool) {
	hc := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", os.Getenv(trainerv1.EnvSocket))
	}}}
	for {
		res, err := hc.Get("http://agent/v1/task?wait=10s")
		if err != nil || res.StatusCode != http.StatusOK {
			time.Sleep(time.Millisecond)
			continue
		}
		var task trainerv1.Task
		if err := json.NewDecoder(res.Body).Decode(&task); err != nil {
			panic(err)
		}
		_ = res.Body.Close()
		if !ignore {
			res, err := hc.Post("http://agent/v1/tasks/"+task.ID+"/result", "application/json", strings.NewReader(`{"steps":1,"samples":5}`))
			if err != nil {
				panic(err)
			}
			_ = res.Body.Close()
		}
		return
	}
}
