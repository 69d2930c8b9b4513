package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
)

// What a site does with its residual when it goes away.
const (
	keepResidual = "keep"
	dropResidual = "drop"
	// flushResidual sends one in four in the last round before.
	flushResidual = "flush"
)

const flushKeepOneIn = 4

// variant is a way to merge: a strategy and what differs from its defaults.
type variant struct {
	Name   string
	Params algorithm.Parameters
	// Rho fixes how far the residual is in play; negative leaves it to the
	// product's gate.
	Rho float64
	// Cap is how many rounds of local work the residual in play may be; the
	// product's is algorithm.RoundsInPlay.
	Cap float64
	// Rule for the outer step of a commit.
	Rule  string
	Leave string
	// Finish is the share of the rounds, the last ones, in which both ways send
	// one in FinishKeepOneIn.
	Finish          float64
	FinishKeepOneIn int
}

// parseVariant reads strategy[:key=value,...]: a strategy's name, dm for decoupled
// momentum, and the keys up, down (one in so many), values, upvalues, downvalues,
// group, eta, mu, rho, cap, rule, leave, finish and finishkeep. Without keys it is
// what a federation has that sets nothing; as in one, eta or mu fix the outer step.
func parseVariant(s string) (variant, error) {
	name, rest, _ := strings.Cut(s, ":")
	strategy := name
	if name == "dm" {
		strategy = algorithm.DecoupledMomentum
	}
	plan, err := algorithm.FromSpec(v1alpha1.AlgorithmSpec{Strategy: algorithm.SpecName(strategy)})
	if err != nil || plan.Strategy != strategy {
		return variant{}, fmt.Errorf("variant %q: unknown strategy %q, want dm or one of %s", s, name, strings.Join(algorithm.Strategies(), ", "))
	}
	v := variant{Name: s, Params: plan.Parameters, Rho: -1, Cap: algorithm.RoundsInPlay, Rule: productRule, Leave: keepResidual, FinishKeepOneIn: flushKeepOneIn}
	for _, pair := range strings.Split(rest, ",") {
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		if err := v.set(key, value); err != nil {
			return variant{}, fmt.Errorf("variant %q: %w", s, err)
		}
	}
	if err := v.Params.Validate(); err != nil {
		return variant{}, fmt.Errorf("variant %q: %w", s, err)
	}
	return v, nil
}

func (v *variant) set(key, value string) (err error) {
	switch key {
	case "up":
		v.Params.Uplink.KeepOneIn, err = strconv.Atoi(value)
	case "down":
		v.Params.Downlink.KeepOneIn, err = strconv.Atoi(value)
	case "values":
		v.Params.Uplink.Values, v.Params.Downlink.Values = algorithm.Values(value), algorithm.Values(value)
	case "upvalues":
		v.Params.Uplink.Values = algorithm.Values(value)
	case "downvalues":
		v.Params.Downlink.Values = algorithm.Values(value)
	case "group":
		v.Params.Uplink.GroupSize, err = strconv.Atoi(value)
		v.Params.Downlink.GroupSize = v.Params.Uplink.GroupSize
	case "eta":
		v.Params.Adaptive = false
		v.Params.OuterLearningRate, err = strconv.ParseFloat(value, 64)
	case "mu":
		v.Params.Adaptive = false
		v.Params.OuterMomentum, err = strconv.ParseFloat(value, 64)
	case "rho":
		v.Rho, err = strconv.ParseFloat(value, 64)
	case "cap":
		v.Cap, err = strconv.ParseFloat(value, 64)
	case "finish":
		if v.Finish, err = strconv.ParseFloat(value, 64); err == nil && !(v.Finish >= 0 && v.Finish <= 1) {
			return fmt.Errorf("finish is %s, want a share from 0 to 1", value)
		}
	case "finishkeep":
		if v.FinishKeepOneIn, err = strconv.Atoi(value); err == nil && v.FinishKeepOneIn < 1 {
			return fmt.Errorf("finishkeep is %s, want one in 1 or more", value)
		}
	case "rule":
		if _, ok := rules[value]; !ok {
			return fmt.Errorf("unknown rule %q", value)
		}
		v.Rule = value
	case "leave":
		if !slices.Contains([]string{keepResidual, dropResidual, flushResidual}, value) {
			return fmt.Errorf("leave is %q, want keep, drop or flush", value)
		}
		v.Leave = value
	default:
		return fmt.Errorf("unknown key %q", key)
	}
	return err
}

// at is the parameters of round n of rounds in which members take part whose last
// known agreement is given.
func (v *variant) at(n, rounds, members int, agreement *float64) algorithm.Parameters {
	p := rules[v.Rule](v.Params, members, agreement)
	if float64(n) >= (1-v.Finish)*float64(rounds) {
		p.Uplink.KeepOneIn = min(p.Uplink.KeepOneIn, v.FinishKeepOneIn)
		p.Downlink.KeepOneIn = min(p.Downlink.KeepOneIn, v.FinishKeepOneIn)
	}
	return p
}

// uplink of an update; leaving says that it is the last one for a while.
func (v *variant) uplink(p algorithm.Parameters, leaving bool) algorithm.Encoding {
	e := p.Uplink
	if leaving && v.Leave == flushResidual {
		e.KeepOneIn = min(e.KeepOneIn, flushKeepOneIn)
	}
	return e
}
