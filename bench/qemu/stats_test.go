package main

import (
	"math"
	"testing"
)

func TestMedianAndSpread(t *testing.T) {
	for _, c := range []struct {
		values         []float64
		median, spread float64
	}{
		{nil, 0, 0},
		{[]float64{3}, 3, 0},
		{[]float64{9, 1, 2}, 2, 4},
		{[]float64{4, 1, 3, 2}, 2.5, 1.2},
	} {
		if m, s := median(c.values), spread(c.values); m != c.median || math.Abs(s-c.spread) > 1e-12 {
			t.Errorf("%v: median %v, spread %v, want %v, %v", c.values, m, s, c.median, c.spread)
		}
	}
	values := []float64{2, 1}
	median(values)
	if values[0] != 2 {
		t.Error("median reorders its argument")
	}
}

func TestGeomean(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{0, 0}, 0},
		{[]float64{0.5, 2}, 1},
		{[]float64{8, 0, 2}, 4},
	} {
		if got := geomean(c.values); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("geomean(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}
