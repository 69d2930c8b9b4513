package redislink

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"girassol.dev/api/events"
)

// The passwords of ACL where none is given. Redis refuses them: no user gets a
// password that everybody knows because a line was pasted as it is.
const (
	CoordinatorPlaceholder = "SHA256-OF-THE-COORDINATORS-PASSWORD"
	AgentsPlaceholder      = "SHA256-OF-THE-AGENTS-PASSWORD"
)

// name of a federation, as Kubernetes has it; a * or ? in a pattern of keys would be
// anybody's.
var name = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// ACL is two commands for Redis that make a federation's users: its coordinator,
// which adds to its stream and publishes on its channel and reads back what it has
// written, and its agents, which only read. Neither can see or touch another
// federation's, nor administer anything. The passwords are hashes by PasswordHash,
// or the placeholders.
func ACL(federation, coordinatorHash, agentsHash string) (string, error) {
	if len(federation) > 253 || !name.MatchString(federation) {
		return "", fmt.Errorf("redis: %.64q is no federation's name: want lower-case letters, digits, dots and hyphens", federation)
	}
	line := func(who, hash, commands string) string {
		stream := events.Stream(federation)
		// Commands to connect: hello and ping, select for a database other than 0, the
		// rest for a Cluster.
		return fmt.Sprintf("ACL SETUSER %s reset on #%s ~%s resetchannels &%s -@all %s +ping +hello +select +command +cluster|slots +cluster|shards\n",
			User(federation, who), hash, stream, stream, commands)
	}
	return line("coordinator", coordinatorHash, "+xadd +xrevrange +publish") +
		line("agents", agentsHash, "+xread +xrevrange +subscribe +unsubscribe"), nil
}

// User is the name of an ACL user: who is coordinator or agents.
func User(federation, who string) string { return "girassol-" + federation + "-" + who }

// PasswordHash of a password file's content, as ACL takes it.
func PasswordHash(content []byte) (string, error) {
	password := strings.TrimRight(string(content), "\r\n")
	if password == "" {
		return "", fmt.Errorf("redis: an empty password lets everybody in")
	}
	sum := sha256.Sum256([]byte(password))
	return hex.EncodeToString(sum[:]), nil
}
