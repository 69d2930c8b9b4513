// Package fetch is the one HTTP client of all providers of signals. It owns how
// they are asked: at most one call at a time and one per period for the same
// question whoever asks, rate limits, backoff, Retry-After, deadlines, limits of
// size, credentials that are never shown, and the words for what went wrong. It
// must not know any provider's fields, sites, thresholds or training.
//
// A Request names a question, Get answers it: from the last answer while that is
// good, with the last error while it is too early to ask again, otherwise by a
// call. n sites of one region therefore make one call, and a loop that asks every
// ten seconds makes one per period. An answer is good until its point's period
// ends, plus a little jitter; a provider that is late is asked again at growing
// distances.
//
// Failures hold what they concern: wrong credentials the account, a plan that
// does not cover a region or a server's fault the scope (region, signal and
// endpoint), a refused or empty answer the question, 429 the host. Temporary ones
// are asked again with backoff and for ever, permanent ones hourly and at once
// when the credential changes. Each is logged once while it lasts, and counted.
package fetch
