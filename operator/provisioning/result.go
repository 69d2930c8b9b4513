package provisioning

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	api "girassol.dev/api/provisioning"
	"girassol.dev/internal/webhooksig"
)

// result takes what a provisioner tells by itself. Whoever cannot sign learns
// nothing: an unknown site, a site without a provisioner and a wrong signature are
// answered alike.
func (a *API) result(w http.ResponseWriter, r *http.Request) {
	now := a.o.Now()
	signed, err := webhooksig.Read(r.Header)
	if err != nil {
		problem(w, http.StatusBadRequest, "Malformed", err.Error())
		return
	}
	if err := signed.Timely(now); err != nil {
		problem(w, http.StatusUnauthorized, "Unauthorized", err.Error())
		return
	}
	if !a.limiter.TryAccept() {
		w.Header().Set("Retry-After", "1")
		problem(w, http.StatusTooManyRequests, "TooManyRequests", "too many results at once; send it again")
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxResult))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		problem(w, http.StatusRequestEntityTooLarge, "TooLarge", fmt.Sprintf("a result has at most %d bytes", maxResult))
		return
	} else if err != nil {
		problem(w, http.StatusBadRequest, "Malformed", "the body did not arrive in time")
		return
	}
	key := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("site")}
	wish, status := a.believe(r, key, signed, body)
	switch status {
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "5")
		problem(w, status, "Unavailable", "the operator cannot read the site or its secret; send it again")
		return
	default:
		problem(w, http.StatusUnauthorized, "Unauthorized", "no site of that name with a provisioner that signs so")
		return
	}
	result, err := parseResult(body)
	if err != nil {
		problem(w, http.StatusUnprocessableEntity, "Malformed", err.Error())
		return
	}
	if wish == nil || wish.Key != result.Key {
		problem(w, http.StatusConflict, "WishChanged", "the site's present wish has another key; the result is of no use any more")
		return
	}
	switch a.heard.see(key, signed, body, now) {
	case replayed:
		writeJSON(w, http.StatusOK, api.Taken{Result: "Duplicate"})
		return
	case reused:
		problem(w, http.StatusConflict, "IDReused", "this webhook-id came with another body: a new message needs a new id")
		return
	case older:
		problem(w, http.StatusConflict, "Superseded", "a later result of this site has been taken")
		return
	case fresh:
	}
	a.o.Log.Info("provisioner told a result", "namespace", key.Namespace, "site", key.Name, "state", result.State)
	a.o.Report(key, result)
	writeJSON(w, http.StatusOK, api.Taken{Result: "Stored"})
}

// believe says whether the site's provisioner signed the body: 200 and the
// present wish, 401, or 503 where that cannot be known now.
func (a *API) believe(r *http.Request, key types.NamespacedName, signed webhooksig.Signed, body []byte) (*v1alpha1.ProvisioningStatus, int) {
	site := &v1alpha1.Site{}
	if err := a.o.Sites.Get(r.Context(), key, site); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, http.StatusUnauthorized
		}
		a.o.Log.Error("site cannot be read", "namespace", key.Namespace, "site", key.Name, "error", err)
		return nil, http.StatusServiceUnavailable
	}
	hook := site.Spec.Capacity.Webhook
	if site.Spec.Capacity.Mode != v1alpha1.CapacityWebhook || hook == nil {
		return nil, http.StatusUnauthorized
	}
	secret := &corev1.Secret{}
	if err := a.o.Secrets.Get(r.Context(), client.ObjectKey{Namespace: key.Namespace, Name: hook.Secret.Name}, secret); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, http.StatusUnauthorized
		}
		a.o.Log.Error("provisioner's secret cannot be read", "namespace", key.Namespace, "site", key.Name, "error", err)
		return nil, http.StatusServiceUnavailable
	}
	secrets, err := Secrets(secret, hook.Secret.Key)
	if err != nil || !signed.By(secrets, body) {
		return nil, http.StatusUnauthorized
	}
	return site.Status.Provisioning, http.StatusOK
}

// parseResult reads a result. Fields that the contract does not know are passed
// over; what it knows must be right.
func parseResult(raw []byte) (api.Result, error) {
	var r api.Result
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(&r); err != nil {
		return api.Result{}, errors.New("the body is not the JSON of docs/provisioning.md")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return api.Result{}, errors.New("there is more after the JSON")
	}
	switch r.State {
	case api.Pending, api.Done, api.Failed:
	default:
		return api.Result{}, errors.New("state is Pending, Done or Failed")
	}
	if r.Key == "" {
		return api.Result{}, errors.New("key is missing")
	}
	return r, nil
}

// heard remembers what was told of each site: a message counts once, and never
// after a later one.
type heard struct {
	mu    sync.Mutex
	sites map[types.NamespacedName]*tale
}

// tale of one site: the time of its last message, and the ids of those that could
// still be sent again.
type tale struct {
	last time.Time
	ids  map[string]message
}

type message struct {
	at     time.Time
	digest [sha256.Size]byte
}

// maxIDs of one site; of more the tale's order must do.
const maxIDs = 256

// verdict on a message.
type verdict int

const (
	fresh verdict = iota
	replayed
	reused
	older
)

func (h *heard) see(key types.NamespacedName, s webhooksig.Signed, body []byte, now time.Time) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sites == nil {
		h.sites = map[types.NamespacedName]*tale{}
	}
	t := h.sites[key]
	if t == nil {
		t = &tale{ids: map[string]message{}}
		h.sites[key] = t
	}
	for id, m := range t.ids {
		if now.Sub(m.at) > 2*webhooksig.Tolerance {
			delete(t.ids, id)
		}
	}
	digest := sha256.Sum256(body)
	if m, known := t.ids[s.ID]; known {
		if m.digest != digest {
			return reused
		}
		return replayed
	}
	if s.Timestamp.Before(t.last) {
		return older
	}
	t.last = s.Timestamp
	if len(t.ids) < maxIDs {
		t.ids[s.ID] = message{now, digest}
	}
	return fresh
}

func (h *heard) forget(key types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sites, key)
}
