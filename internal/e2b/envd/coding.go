package envd

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// acceptable says which content codings a client takes.
type acceptable struct {
	gzip     bool
	identity bool
	only     bool // gzip is all that was asked for
}

// accepted reads the header Accept-Encoding.
func accepted(header string) acceptable {
	a := acceptable{identity: true}
	weights := map[string]float64{}
	for item := range strings.SplitSeq(header, ",") {
		coding, params, _ := strings.Cut(item, ";")
		if coding = strings.ToLower(strings.TrimSpace(coding)); coding != "" {
			weights[coding] = weight(params)
		}
	}
	if q, ok := weights["*"]; ok {
		a.gzip, a.identity = q > 0, q > 0
	}
	if q, ok := weights["identity"]; ok {
		a.identity = q > 0
	}
	if q, ok := weights["gzip"]; ok {
		a.gzip = q > 0
		a.only = q > 0 && len(weights) == 1
	}
	return a
}

// weight is the number in the parameter q; 1 unless there is a good one.
func weight(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		if text, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(p)), "q="); ok {
			if q, err := strconv.ParseFloat(text, 64); err == nil {
				return q
			}
		}
	}
	return 1
}

// decoded returns the request's body as it was before a content coding.
func decoded(r *http.Request) (io.Reader, error) {
	coding := r.Header.Get("Content-Encoding")
	switch strings.ToLower(strings.TrimSpace(coding)) {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		body, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, fmt.Errorf("error decompressing request body: %w", err)
		}
		return body, nil
	}
	return nil, fmt.Errorf("unsupported Content-Encoding: %q, supported: gzip", coding)
}
