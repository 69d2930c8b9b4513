package controller

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/api/provisioning"
	"girassol.dev/operator/capacity"
)

// outsideProvisioner takes wishes and says that it has fulfilled them.
type outsideProvisioner struct {
	mu   sync.Mutex
	keys map[provisioning.Action][]string
	// wants are nodes, as last wished.
	wants int
	fails bool
}

func (p *outsideProvisioner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var wish provisioning.Wish
	if err := json.NewDecoder(r.Body).Decode(&wish); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.keys[wish.Wish], wish.Key) {
		p.keys[wish.Wish] = append(p.keys[wish.Wish], wish.Key)
	}
	answer := provisioning.Answer{State: provisioning.Done}
	p.wants = 0
	if wish.Wish == provisioning.Provision {
		p.wants = 1
		if p.fails {
			answer = provisioning.Answer{State: provisioning.Failed, Message: "no spot capacity"}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (p *outsideProvisioner) asked(a provisioning.Action) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.keys[a])
}

// hooked is a site whose capacity an outside provisioner makes.
func (g *rig) hooked(name string, edit ...func(*v1alpha1.Site)) *outsideProvisioner {
	g.t.Helper()
	p := &outsideProvisioner{keys: map[provisioning.Action][]string{}}
	server := httptest.NewServer(p)
	g.t.Cleanup(server.Close)
	g.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "hook"}, StringData: map[string]string{"key": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	g.labelled(name, append([]func(*v1alpha1.Site){func(s *v1alpha1.Site) {
		s.Spec.Capacity.Mode = v1alpha1.CapacityWebhook
		s.Spec.Capacity.Webhook = &v1alpha1.ProvisionerSpec{URL: server.URL, Secret: v1alpha1.SecretKeyReference{Name: "hook", Key: "key"}}
	}}, edit...)...)
	g.pause = func() {
		select { // an answer comes in its own time
		case <-g.r.Capacity.(*capacity.Keeper).Changed():
		case <-time.After(20 * time.Millisecond):
		}
		p.mu.Lock()
		wants := p.wants
		if p.fails {
			wants = 0
		}
		p.mu.Unlock()
		has := g.nodes(name)
		for i := len(has); i < wants; i++ {
			g.node(name, i)
		}
		for i := wants; i < len(has); i++ {
			g.must(g.e.Client.Delete(g.t.Context(), &has[i]))
		}
	}
	return p
}

func TestAnOutsideProvisionerMakesAndTakesBackTheNodes(t *testing.T) {
	for _, writes := range []int{-1, 1, 2} {
		t.Run(fmt.Sprintf("operators with %d writes", writes), func(t *testing.T) {
			g := newRig(t)
			g.writes = writes
			g.restart()
			p := g.hooked("quebec")
			g.federation("f", "quebec")
			g.phase("quebec", v1alpha1.SiteIdle)
			g.wholeLife("quebec")
			g.wantOrder("quebec", "label", "seat ADMIT quebec", "seat DRAIN quebec", "unlabel")
			if n := p.asked(provisioning.Provision); n != 1 {
				t.Errorf("asked for capacity %d times for one wish", n)
			}
			g.must(g.e.Client.Delete(t.Context(), g.site("quebec")))
			g.until("gone", func() bool { return g.gone("quebec") })
			if n := len(g.nodes("quebec")); n != 0 {
				t.Errorf("%d nodes are left", n)
			}
		})
	}
}

func TestAProvisionerThatGivesUpFailsTheSiteAtOnce(t *testing.T) {
	g := newRig(t)
	p := g.hooked("quebec")
	p.fails = true
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteFailed)
	s := g.site("quebec")
	if s.Status.Reason != v1alpha1.ReasonProvisionerFailed || s.Status.Provisioning.RetryAt == nil {
		t.Errorf("%s: %s; %+v", s.Status.Reason, s.Status.Message, s.Status.Provisioning)
	}
	g.until("handed back", func() bool { return p.asked(provisioning.Release) > 0 })
}
