// Package depspin keeps dependencies in go.mod while packages that use them are being written.
package depspin

import (
	_ "github.com/alicebob/miniredis/v2"
	_ "github.com/cenkalti/backoff/v4"
	_ "github.com/cockroachdb/datadriven"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/redis/go-redis/v9"
	_ "github.com/spf13/cobra"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "golang.org/x/tools/go/packages"
	_ "gonum.org/v1/gonum/blas/blas32"
	_ "google.golang.org/grpc"
	_ "google.golang.org/grpc/mem"
	_ "k8s.io/apimachinery/pkg/apis/meta/v1"
	_ "pgregory.net/rapid"
	_ "sigs.k8s.io/yaml"
)
