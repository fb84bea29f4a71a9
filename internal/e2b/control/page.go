package control

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const maxPage = 100 // items

// page is a part of a list that is in the order of its items' keys.
type page struct {
	after string // key of the last item of the page before; empty: from the start
	limit int    // items; zero: all
	down  bool   // newest first
}

// key orders items by time. It is unique if id is.
func key(at time.Time, id string) string {
	return fmt.Sprintf("%020d %s", max(0, at.UnixNano()), id)
}

func pageOf(q url.Values) (page, error) {
	p := page{limit: maxPage}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			return p, invalid("limit: must be 1 to %d, not %q", maxPage, clip(text))
		}
		p.limit = n
	}
	if text := q.Get("nextToken"); text != "" {
		after, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil || len(after) == 0 {
			return p, invalid("nextToken: not one that this daemon has given out")
		}
		p.after = string(after)
	}
	switch order := q.Get("order"); order {
	case "", "desc":
		p.down = true
	case "asc":
	default:
		return p, invalid("order: must be asc or desc, not %q", clip(order))
	}
	return p, nil
}

// turn returns a page of a list and tells in a header how to get the next. Items
// that come and go between two pages move no others from one to the next.
func turn[T any](w http.ResponseWriter, p page, list []T, key func(T) string) []T {
	order := func(a, b string) int {
		if p.down {
			a, b = b, a
		}
		return strings.Compare(a, b)
	}
	slices.SortFunc(list, func(a, b T) int { return order(key(a), key(b)) })
	start := 0
	if p.after != "" {
		for start < len(list) && order(key(list[start]), p.after) <= 0 {
			start++
		}
	}
	end := len(list)
	if p.limit > 0 && start+p.limit < end {
		end = start + p.limit
		w.Header().Set("X-Next-Token", base64.RawURLEncoding.EncodeToString([]byte(key(list[end-1]))))
	}
	return list[start:end]
}
