package energy

import (
	"encoding/json"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
)

// Handler serves POST /v1/signals/{namespace}/{federation} and
// GET /v1/explain/{namespace}/{federation}/{site}. Explanations tell about tenants:
// where strangers can reach it, serve Pushes alone.
func (e *Engine) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/signals/", e.Pushes())
	mux.HandleFunc("GET /v1/explain/{namespace}/{federation}/{site}", e.explain)
	return mux
}

// Pushes serves POST /v1/signals/{namespace}/{federation}, and the handshakes of
// senders at the same path.
func (e *Engine) Pushes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/signals/{namespace}/{federation}", e.push)
	return mux
}

func (e *Engine) push(w http.ResponseWriter, r *http.Request) {
	fed := e.federation(types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("federation")})
	if fed == nil || !fed.serve(w, r) {
		// The same for all: who has no key learns no names.
		refuse(w, http.StatusNotFound, "no signals are taken here")
	}
}

func (e *Engine) explain(w http.ResponseWriter, r *http.Request) {
	fed := e.federation(types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("federation")})
	if fed == nil {
		refuse(w, http.StatusNotFound, "there is no such federation here, or another operator decides for it")
		return
	}
	x, err := fed.explain(r.PathValue("site"))
	if err != nil {
		refuse(w, http.StatusNotFound, err.Error())
		return
	}
	answer(w, http.StatusOK, x)
}

func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]string{"error": message})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // whoever asked may have gone
}
