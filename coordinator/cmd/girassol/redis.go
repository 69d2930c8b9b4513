package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"girassol.dev/internal/redislink"
)

func redisCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "redis",
		Short: "Prepare a Redis for a federation's events",
		Args:  exactly(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(redisACLCommand())
	return cmd
}

func redisACLCommand() *cobra.Command {
	var federation, coordinator, agents string
	cmd := &cobra.Command{
		Use:   "acl --federation NAME",
		Short: "Print the commands that make a federation's users of Redis",
		Long: `Print two ACL SETUSER commands: for the coordinator, which writes the federation's
events, and for its agents, which read them. Neither can do anything else there.

The lines hold hashes of the passwords, of the given files or else placeholders,
which Redis refuses: put the hash in their place, printf %s PASSWORD | sha256sum.
Both programs then need --redis-username and --redis-password-file.`,
		Example: `  girassol redis acl --federation lm --coordinator-password-file c.pw --agents-password-file a.pw | redis-cli -h redis.example`,
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := passwordHash(coordinator, redislink.CoordinatorPlaceholder)
			if err != nil {
				return err
			}
			a, err := passwordHash(agents, redislink.AgentsPlaceholder)
			if err != nil {
				return err
			}
			lines, err := redislink.ACL(federation, c, a)
			if err != nil {
				return usageError{fmt.Errorf("--federation: %w", err)}
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), lines)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&federation, "federation", "", "`name` of the federation (required)")
	f.StringVar(&coordinator, "coordinator-password-file", "", "`file` with the coordinator's password, whose hash is printed")
	f.StringVar(&agents, "agents-password-file", "", "`file` with the agents' password, whose hash is printed")
	_ = cmd.MarkFlagRequired("federation")
	return cmd
}

func passwordHash(file, placeholder string) (string, error) {
	if file == "" {
		return placeholder, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	hash, err := redislink.PasswordHash(b)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return hash, nil
}
