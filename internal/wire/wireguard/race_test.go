//go:build race

package wireguard

const raceDetector = true
