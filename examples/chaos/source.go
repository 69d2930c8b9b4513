//go:build linux

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// sourceCommand is the signal source: it answers a Prometheus' queries with the
// number in a file named after the query.
func sourceCommand() *cobra.Command {
	var listen, dir string
	cmd := &cobra.Command{Use: "source", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { answer(w, r, dir) })
		server := &http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
		return server.ListenAndServe()
	}}
	cmd.Flags().StringVar(&listen, "listen", "", "address")
	cmd.Flags().StringVar(&dir, "dir", "", "folder of the numbers")
	return cmd
}

func answer(w http.ResponseWriter, r *http.Request, dir string) {
	b, err := os.ReadFile(filepath.Join(dir, filepath.Base(r.FormValue("query"))))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	value := strings.TrimSpace(string(b))
	w.Header().Set("Content-Type", "application/json")
	if !strings.HasSuffix(r.URL.Path, "query_range") {
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[%d,%q]}]}}`, time.Now().Unix(), value)
		return
	}
	from, to, step := number(r.FormValue("start")), number(r.FormValue("end")), max(number(r.FormValue("step")), 1)
	var points []string
	for t := from; t <= to && len(points) < 11000; t += step {
		points = append(points, fmt.Sprintf(`[%d,%q]`, int64(t), value))
	}
	fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[%s]}]}}`, strings.Join(points, ","))
}

// number of a time or step: seconds, or RFC 3339.
func number(text string) float64 {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return float64(t.Unix())
	}
	v, _ := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64)
	return v
}
