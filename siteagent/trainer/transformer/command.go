package transformer

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/siteagent/trainer/client"
)

// Command is the built-in trainer as a command named "trainer". It runs until
// SIGTERM or SIGINT, finishing the task in hand with the steps done so far.
func Command() *cobra.Command {
	cfg := DefaultConfig()
	var (
		socket, work          string
		data, files           string
		heldOut, heldOutFiles string
		limitMiB              int64
		seed                  uint64
		evaluateTokens        int
		procs                 int
	)
	cmd := &cobra.Command{
		Use:   "trainer",
		Short: "Train the built-in byte-level transformer for a site agent",
		Long: `Train the built-in byte-level transformer for a site agent.

The process asks the agent on the Unix socket for tasks, trains or evaluates on
text files, and keeps its optimizer state between tasks. An agent that starts
it sets ` + trainerv1.EnvSocket + ` and ` + trainerv1.EnvWorkDir + `.

A task's config may set lr, beta1, beta2, weight_decay, clip, warmup,
total_samples and lr_floor for that task; they mean what the flags mean.

Where the federation counts samples (spec.data), a sample is a window of --context
bytes of the text, which must be the same at all sites: spec.data.samples is the
number of samples that the trainer logs at its start.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if socket == "" {
				return fmt.Errorf("no socket: set --socket or %s", trainerv1.EnvSocket)
			}
			if work == "" {
				work = filepath.Dir(socket)
			}
			// Several trainers share a machine: one core each.
			runtime.GOMAXPROCS(procs)
			corpus, err := read("--data", data, "--files", files, limitMiB<<20)
			if err != nil {
				return err
			}
			if corpus == nil {
				return errors.New("no text to train on: set --data or --files")
			}
			held, err := read("--held-out", heldOut, "--held-out-files", heldOutFiles, limitMiB<<20)
			if err != nil {
				return err
			}
			t, err := NewTrainer(cfg, corpus, seed)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			log.Info("trainer is up", "parameters", t.model.layout.Parameters(), "bytes", corpus.Len(), "samples", corpus.Windows(cfg.Context),
				"files", corpus.Files, "skipped", corpus.Skipped, "socket", socket)
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			c := client.New(socket)
			defer c.Close()
			p := &Process{Client: c, Trainer: t, HeldOut: held, EvaluateTokens: evaluateTokens, WorkDir: work, Log: log}
			if err := p.Run(ctx); ctx.Err() == nil {
				return err
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&socket, "socket", os.Getenv(trainerv1.EnvSocket), "`path` of the agent's Unix socket; default $"+trainerv1.EnvSocket)
	f.StringVar(&work, "work-dir", os.Getenv(trainerv1.EnvWorkDir), "`folder` shared with the agent; default $"+trainerv1.EnvWorkDir+", else the socket's folder")
	f.StringVar(&data, "data", "", "`folder` of text to train on; binaries and symlinks are skipped")
	f.StringVar(&files, "files", "", "`file` that lists the text files to train on, one path a line; instead of --data")
	f.StringVar(&heldOut, "held-out", "", "`folder` of text for evaluate tasks")
	f.StringVar(&heldOutFiles, "held-out-files", "", "`file` that lists the text files for evaluate tasks; instead of --held-out")
	f.Int64Var(&limitMiB, "data-limit", DefaultCorpusLimit>>20, "most text to read of each of the two, in `MiB`")
	f.IntVar(&evaluateTokens, "evaluate-tokens", 32768, "held-out text per evaluate task, in `bytes`")
	f.Uint64Var(&seed, "seed", 1, "random `seed` of the windows of text; another one at each site")
	f.Uint64Var(&cfg.InitSeed, "init-seed", cfg.InitSeed, "random `seed` of the first weights; the same at each site")
	f.IntVar(&cfg.Dim, "dim", cfg.Dim, "width of the model, in `elements`")
	f.IntVar(&cfg.Layers, "layers", cfg.Layers, "`number` of layers")
	f.IntVar(&cfg.Heads, "heads", cfg.Heads, "attention `heads` per layer")
	f.IntVar(&cfg.Context, "context", cfg.Context, "context length, in `bytes`")
	f.IntVar(&cfg.Batch, "batch", cfg.Batch, "`windows` per step")
	f.Float64Var(&cfg.LR, "lr", cfg.LR, "peak learning `rate` of AdamW")
	f.Float64Var(&cfg.Beta1, "beta1", cfg.Beta1, "decay of the first moment, `fraction` per step")
	f.Float64Var(&cfg.Beta2, "beta2", cfg.Beta2, "decay of the second moment, `fraction` per step")
	f.Float64Var(&cfg.WeightDecay, "weight-decay", cfg.WeightDecay, "decoupled weight decay, `factor` of the learning rate")
	f.Float64Var(&cfg.Clip, "clip", cfg.Clip, "largest 2-`norm` of a step's gradient; 0 does not clip")
	f.IntVar(&cfg.Warmup, "warmup", cfg.Warmup, "`steps` of this process until the full learning rate")
	f.Uint64Var(&cfg.TotalSamples, "total-samples", cfg.TotalSamples, "`samples` (bytes) of all sites at which the cosine ends; 0: constant rate (default 0)")
	f.Float64Var(&cfg.LRFloor, "lr-floor", cfg.LRFloor, "`fraction` of the rate that the cosine ends at")
	f.IntVar(&procs, "procs", 1, "CPU `cores` to use at most")
	return cmd
}

// read reads a corpus from a folder or from a list, or none if neither is set.
func read(folderFlag, folder, listFlag, list string, limit int64) (*Corpus, error) {
	switch {
	case folder != "" && list != "":
		return nil, fmt.Errorf("%s and %s exclude each other", folderFlag, listFlag)
	case folder != "":
		return ReadFolder(folder, limit)
	case list != "":
		return ReadList(list, limit)
	}
	return nil, nil
}
