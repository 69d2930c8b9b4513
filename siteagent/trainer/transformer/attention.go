package transformer

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// weightGrad is dw = dy^T*x for a weight of [out, in], computed as its
// transpose because rows of out are the longer ones.
func (m *Model) weightGrad(dw []float32, x, dy blas32.General) {
	in, out := x.Cols, dy.Cols
	dt := m.dt[:in*out]
	gemm(blas.Trans, blas.NoTrans, 1, x, dy, 0, dense(dt, in, out))
	transpose(dw, dt, in, out, out)
}

// attend is causal attention, head by head: mixed = softmax(q*k^T/sqrt(hd))*v.
func (m *Model) attend(a *activations) {
	c := m.cfg
	d, T, hd := c.Dim, c.Context, c.Dim/c.Heads
	scale := 1 / float32(sqrt64(float64(hd)))
	for b := range c.Batch {
		for h := range c.Heads {
			at := b*T*3*d + h*hd
			q, k, v := a.qkv[at:], a.qkv[at+d:], a.qkv[at+2*d:]
			for t := range T {
				m.rope.rotate(q[t*3*d:t*3*d+hd], t, 1)
				m.rope.rotate(k[t*3*d:t*3*d+hd], t, 1)
			}
			probs := a.probs[(b*c.Heads+h)*T*T:][:T*T]
			transpose(m.tmp.headT, k, T, hd, 3*d)
			gemm(blas.NoTrans, blas.NoTrans, 1, mat(q, T, hd, 3*d), dense(m.tmp.headT, hd, T), 0, dense(probs, T, T))
			for t := range T {
				softmax(probs[t*T:t*T+t+1], scale)
				clear(probs[t*T+t+1 : t*T+T])
			}
			gemm(blas.NoTrans, blas.NoTrans, 1, dense(probs, T, T), mat(v, T, hd, 3*d), 0, mat(a.mixed[b*T*d+h*hd:], T, hd, d))
		}
	}
}

// attendGrad fills dqkv from dmixed, the gradient of mixed.
func (m *Model) attendGrad(a *activations, dqkv, dmixed []float32) {
	c := m.cfg
	d, T, hd := c.Dim, c.Context, c.Dim/c.Heads
	scale := 1 / float32(sqrt64(float64(hd)))
	for b := range c.Batch {
		for h := range c.Heads {
			at := b*T*3*d + h*hd
			q, k, v := a.qkv[at:], a.qkv[at+d:], a.qkv[at+2*d:]
			dq, dk, dv := dqkv[at:], dqkv[at+d:], dqkv[at+2*d:]
			probs, dp := a.probs[(b*c.Heads+h)*T*T:][:T*T], m.tmp.dprobs
			dm := mat(dmixed[b*T*d+h*hd:], T, hd, d)
			gemm(blas.Trans, blas.NoTrans, 1, dense(probs, T, T), dm, 0, mat(dv, T, hd, 3*d))
			transpose(m.tmp.headT, v, T, hd, 3*d)
			gemm(blas.NoTrans, blas.NoTrans, 1, dm, dense(m.tmp.headT, hd, T), 0, dense(dp, T, T))
			for t := range T {
				softmaxGrad(dp[t*T:t*T+t+1], probs[t*T:t*T+t+1], scale)
				clear(dp[t*T+t+1 : t*T+T])
			}
			gemm(blas.NoTrans, blas.NoTrans, 1, dense(dp, T, T), mat(k, T, hd, 3*d), 0, mat(dq, T, hd, 3*d))
			gemm(blas.Trans, blas.NoTrans, 1, dense(dp, T, T), mat(q, T, hd, 3*d), 0, mat(dk, T, hd, 3*d))
			for t := range T {
				m.rope.rotate(dq[t*3*d:t*3*d+hd], t, -1)
				m.rope.rotate(dk[t*3*d:t*3*d+hd], t, -1)
			}
		}
	}
}

// softmaxGrad turns dp, the gradient of p = softmax(scale*s), into that of s.
func softmaxGrad(dp, p []float32, scale float32) {
	p = p[:len(dp)]
	var dot float32
	for i, v := range dp {
		dot += v * p[i]
	}
	for i, v := range dp {
		dp[i] = scale * p[i] * (v - dot)
	}
}
