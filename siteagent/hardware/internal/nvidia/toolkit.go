package nvidia

import "encoding/json"

// parseToolkit reads the CUDA toolkit's version.json.
func parseToolkit(text string) string {
	var v struct {
		CUDA struct {
			Version string `json:"version"`
		} `json:"cuda"`
	}
	if json.Unmarshal([]byte(text), &v) != nil {
		return ""
	}
	return v.CUDA.Version
}
