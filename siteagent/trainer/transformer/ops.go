package transformer

import "math"

const lnEps = 1e-5

func sqrt64(x float64) float64 { return math.Sqrt(x) }

// layerNorm normalises each row of x: xhat = (x-mean)/std, y = xhat*w + b.
// rstd is 1/std of each row; xhat and rstd are what the gradient needs.
func layerNorm(y, xhat, rstd, x, w, b []float32, d int) {
	for r := range rstd {
		row, hat, out := x[r*d:r*d+d], xhat[r*d:r*d+d], y[r*d:r*d+d]
		var sum float32
		for _, v := range row {
			sum += v
		}
		mean := sum / float32(d)
		var sq float32
		for _, v := range row {
			sq += (v - mean) * (v - mean)
		}
		inv := 1 / float32(math.Sqrt(float64(sq/float32(d)+lnEps)))
		rstd[r] = inv
		w, b := w[:len(row)], b[:len(row)]
		hat, out = hat[:len(row)], out[:len(row)]
		for i, v := range row {
			h := (v - mean) * inv
			hat[i] = h
			out[i] = h*w[i] + b[i]
		}
	}
}

// layerNormGrad adds the gradient of layerNorm at dy to dx, dw and db.
func layerNormGrad(dx, dw, db, dy, xhat, rstd, w []float32, d int) {
	for r, inv := range rstd {
		hat, g, out := xhat[r*d:r*d+d], dy[r*d:r*d+d], dx[r*d:r*d+d]
		w, dw, db := w[:len(hat)], dw[:len(hat)], db[:len(hat)]
		g, out = g[:len(hat)], out[:len(hat)]
		var sum, dot float32
		for i, h := range hat {
			gi := g[i]
			dw[i] += gi * h
			db[i] += gi
			gw := gi * w[i]
			sum += gw
			dot += gw * h
		}
		sum /= float32(d)
		dot /= float32(d)
		for i, h := range hat {
			out[i] += inv * (g[i]*w[i] - sum - h*dot)
		}
	}
}

// squareReLU is h = max(z,0)^2 (arXiv 2109.08668); z becomes max(z,0). Its
// exact zeros are rows that gonum's Gemm skips.
func squareReLU(h, z []float32) {
	h = h[:len(z)]
	for i, v := range z {
		v = max(v, 0)
		z[i] = v
		h[i] = v * v
	}
}

// squareReLUGrad turns dh into dz = 2*max(z,0)*dh.
func squareReLUGrad(dh, r []float32) {
	dh = dh[:len(r)]
	for i, v := range r {
		dh[i] *= 2 * v
	}
}

// rope is the rotary position embedding (arXiv 2104.09864) of one head width.
type rope struct{ cos, sin []float32 } // [context, half]

func newRope(context, headDim int) rope {
	half := headDim / 2
	r := rope{make([]float32, context*half), make([]float32, context*half)}
	for t := range context {
		for i := range half {
			a := float64(t) * math.Pow(10000, -float64(i)/float64(half))
			r.cos[t*half+i] = float32(math.Cos(a))
			r.sin[t*half+i] = float32(math.Sin(a))
		}
	}
	return r
}

// rotate turns one head's vector at position t; sign -1 turns back, which is
// also the gradient.
func (r rope) rotate(x []float32, t int, sign float32) {
	half := len(x) / 2
	c, s := r.cos[t*half:t*half+half], r.sin[t*half:t*half+half]
	a, b := x[:half], x[half:half+half]
	for i, ci := range c {
		si := sign * s[i]
		ai, bi := a[i], b[i]
		a[i] = ai*ci - bi*si
		b[i] = ai*si + bi*ci
	}
}

// softmax turns row into exp(scale*(row-max))/sum in place.
func softmax(row []float32, scale float32) {
	top := row[0]
	for _, v := range row {
		top = max(top, v)
	}
	var sum float32
	for i, v := range row {
		e := exp32(scale * (v - top))
		row[i] = e
		sum += e
	}
	inv := 1 / sum
	for i := range row {
		row[i] *= inv
	}
}

// crossEntropy is -log softmax(logits)[target] in nats. With gradient set,
// logits become its gradient times weight.
func crossEntropy(logits []float32, target byte, gradient bool, weight float32) float64 {
	top := logits[0]
	for _, v := range logits {
		top = max(top, v)
	}
	at := logits[target]
	var sum float32
	if !gradient {
		for _, v := range logits {
			sum += exp32(v - top)
		}
		return math.Log(float64(sum)) - float64(at-top)
	}
	for i, v := range logits {
		e := exp32(v - top)
		logits[i] = e
		sum += e
	}
	scale := weight / sum
	for i := range logits {
		logits[i] *= scale
	}
	logits[target] -= weight
	return math.Log(float64(sum)) - float64(at-top)
}

// exp32 is e^x for x <= 0 to about 2 units in the last place: x = k*ln2 + r,
// e^r by its Taylor polynomial on |r| <= ln2/2. Less than e^-87 is 0.
func exp32(x float32) float32 {
	if x < -87 {
		return 0
	}
	k := int32(x*math.Log2E - 0.5) // x <= 0: rounds to nearest
	f := float32(k)
	r := x - f*0.693359375 + f*2.12194440e-4 // ln2 in two parts
	p := float32(1.0 / 5040)
	p = p*r + 1.0/720
	p = p*r + 1.0/120
	p = p*r + 1.0/24
	p = p*r + 1.0/6
	p = p*r + 0.5
	p = p*r + 1
	p = p*r + 1
	return p * math.Float32frombits(uint32(k+127)<<23)
}
