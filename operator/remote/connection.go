package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// syncTimeout bounds how long the Nodes may take to be listed.
const syncTimeout = time.Minute

// connection to a cluster that has answered. A nil connection may be closed.
type connection struct {
	client  client.Client
	http    *http.Client
	sockets *sockets
	health  string
	// end ends the cache; done is closed when all of it has ended.
	end  context.CancelFunc
	done chan struct{}
}

// connect asks a cluster whether it is well and lets its Nodes be read, and lists
// and watches them. changed is called when one of them changes in what matters.
func connect(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, timeout time.Duration, changed func()) (*connection, error) {
	sockets := newSockets(timeout / 2)
	bounded, unbounded, err := clients(config, timeout, sockets)
	if err != nil {
		return nil, err
	}
	c := &connection{http: bounded, sockets: sockets, end: func() {}, done: make(chan struct{})}
	if err := c.open(ctx, config, scheme, unbounded, changed); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *connection) open(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, unbounded *http.Client, changed func()) error {
	running := false
	defer func() {
		if !running {
			close(c.done)
		}
	}()
	var err error
	if c.health, err = url.JoinPath(config.Host, "readyz"); err != nil {
		return err
	}
	if err := c.probe(ctx); err != nil {
		return err
	}
	mapper, err := apiutil.NewDynamicRESTMapper(config, c.http)
	if err != nil {
		return err
	}
	live, err := client.New(config, client.Options{HTTPClient: c.http, Scheme: scheme, Mapper: mapper})
	if err != nil {
		return err
	}
	// Where it may not list, the cache would only try for ever.
	if err := live.List(ctx, &corev1.NodeList{}, client.Limit(1)); err != nil {
		return err
	}
	nodes, err := cache.New(config, cache.Options{HTTPClient: unbounded, Scheme: scheme, Mapper: mapper, DefaultTransform: slim})
	if err != nil {
		return err
	}
	informer, err := nodes.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	if _, err := informer.AddEventHandler(onNodes(changed)); err != nil {
		return err
	}
	var life context.Context
	life, c.end = context.WithCancel(ctx)
	running = true
	go func() {
		defer close(c.done)
		_ = nodes.Start(life) // it ends with life and has no other errors
	}()
	syncing, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !nodes.WaitForCacheSync(syncing) {
		return fmt.Errorf("its Nodes could not be listed within %s", syncTimeout)
	}
	c.client = &nodesCached{Client: live, nodes: nodes}
	return nil
}

// clients give up after timeout, or never: for watches. They share a transport.
func clients(config *rest.Config, timeout time.Duration, sockets *sockets) (bounded, unbounded *http.Client, err error) {
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, nil, err
	}
	transport := &http.Transport{
		DialContext:         sockets.dial,
		TLSClientConfig:     tls,
		TLSHandshakeTimeout: timeout / 2,
		IdleConnTimeout:     90 * time.Second,
		ForceAttemptHTTP2:   true,
		// A tunnel that is gone ends its watches, though nothing is sent.
		HTTP2: &http.HTTP2Config{SendPingTimeout: timeout, PingTimeout: timeout},
	}
	wrapped, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		return nil, nil, err
	}
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: wrapped, Timeout: timeout, CheckRedirect: noRedirect},
		&http.Client{Transport: wrapped, CheckRedirect: noRedirect}, nil
}

// probe asks for the cluster's health. Clusters behind a proxy may not serve
// /readyz to everyone; whatever is no failure of the server is good enough.
func (c *connection) probe(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.health, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return errors.New("it refuses the credentials: renew the kubeconfig in the Secret")
	case resp.StatusCode >= 500, resp.StatusCode >= 300 && resp.StatusCode < 400:
		return fmt.Errorf("its /readyz answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return nil
}

func (c *connection) close() {
	if c == nil {
		return
	}
	c.end()
	<-c.done
	c.sockets.close()
}

// describe an error in words that stay the same while the matter does: ports and
// URLs change, and these words stand in conditions.
func describe(err error) string {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	var timeout net.Error
	switch op := (*net.OpError)(nil); {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it does not answer in time"
	case apierrors.IsForbidden(err):
		return "the kubeconfig's user may not list nodes: give it the verbs get, list, watch and patch on nodes"
	case apierrors.IsUnauthorized(err):
		return "it refuses the credentials: renew the kubeconfig in the Secret"
	case errors.As(err, &op):
		return op.Op + ": " + op.Err.Error()
	}
	const most = 256
	if text := strings.Join(strings.Fields(err.Error()), " "); len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(err.Error()[:most], "") + "…"
}

// nodesCached reads Nodes from a cache and all else from the cluster.
type nodesCached struct {
	client.Client
	nodes client.Reader
}

// Get reads a Node from the cache, anything else from the cluster.
func (c *nodesCached) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*corev1.Node); ok {
		return c.nodes.Get(ctx, key, o, opts...)
	}
	return c.Client.Get(ctx, key, o, opts...)
}

// List reads Nodes from the cache, anything else from the cluster.
func (c *nodesCached) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	if _, ok := l.(*corev1.NodeList); ok {
		return c.nodes.List(ctx, l, opts...)
	}
	return c.Client.List(ctx, l, opts...)
}

// slim takes off what is big and looked at by nobody. managedFields stay: by them
// is known what is ours.
func slim(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		n.Status.Images, n.Status.VolumesAttached, n.Status.VolumesInUse = nil, nil, nil
	}
	return o, nil
}

// onNodes calls changed unless only heartbeats did.
func onNodes(changed func()) toolscache.ResourceEventHandlerFuncs {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(was, is any) {
			a, aok := was.(*corev1.Node)
			b, bok := is.(*corev1.Node)
			if !aok || !bok || differ(a, b) {
				changed()
			}
		},
	}
}

// differ in what says which GPUs can be used.
func differ(a, b *corev1.Node) bool {
	return !maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) ||
		a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(a.Spec, b.Spec) ||
		!equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable) ||
		!maps.Equal(conditions(a), conditions(b))
}

func conditions(n *corev1.Node) map[corev1.NodeConditionType]corev1.ConditionStatus {
	m := map[corev1.NodeConditionType]corev1.ConditionStatus{}
	for _, c := range n.Status.Conditions {
		m[c.Type] = c.Status
	}
	return m
}
