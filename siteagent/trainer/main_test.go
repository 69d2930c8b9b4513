package trainer

import (
	"context"
	"fmt"
	"os"
	"os/signal"
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
