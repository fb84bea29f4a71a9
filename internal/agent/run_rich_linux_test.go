package agent_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// needModule skips a test that needs a module which Python does not have.
func (f *fixture) needModule(t *testing.T, name string) {
	t.Helper()
	if f.value(t, "import importlib.util; importlib.util.find_spec('"+name+"') is not None") != "true" {
		t.Skipf("needs Python's %s", name)
	}
}

func TestRunForms(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	for name, tc := range map[string]struct {
		code string
		data map[string]string // of each display, in their order
	}{
		"plain":      {"display(1, 'x')", map[string]string{"text/plain": `1|'x'`}},
		"raw":        {"display({'text/latex': r'\\text{a}'}, raw=True)", map[string]string{"text/latex": `\text{a}`}},
		"html":       {"from IPython.display import HTML, display\ndisplay(HTML('<b>'))\nHTML('<i>')", map[string]string{"text/html": "<b>|<i>", "text/plain": "<IPython.core.display.HTML object>|<IPython.core.display.HTML object>"}},
		"markdown":   {"from IPython.display import *\nMarkdown('# a')", map[string]string{"text/markdown": "# a", "text/plain": "<IPython.core.display.Markdown object>"}},
		"json":       {"from IPython.display import JSON\nJSON({'a': [1]})", map[string]string{"application/json": `{"a": [1]}`, "text/plain": "<IPython.core.display.JSON object>"}},
		"image":      {"from IPython.display import Image\nImage(b'\\xff\\xd8jpeg')", map[string]string{"image/jpeg": "/9hqcGVn", "text/plain": "<IPython.core.display.Image object>"}},
		"methods":    {"class A:\n    def _repr_html_(self): return '<a>'\n    def _repr_png_(self): return b'png'\n    def _repr_svg_(self): 1/0\n    def __repr__(self): return 'A'\nA()", map[string]string{"text/html": "<a>", "image/png": "cG5n", "text/plain": "A"}},
		"bundle":     {"class B:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/html': 'b', 'x/y': 'z'}, {}\n    def __repr__(self): return 'B'\nB()", map[string]string{"text/html": "b", "x/y": "z", "text/plain": "B"}},
		"itself":     {"class C:\n    def _ipython_display_(self): display('shown')\nC()", map[string]string{"text/plain": "'shown'"}},
		"all names":  {"class D:\n    def __getattr__(self, name): return lambda *a, **k: name\n    def __repr__(self): return 'D'\nD()", map[string]string{"text/plain": "D"}},
		"not JSON":   {"display({'application/json': float('nan'), 'text/plain': 'p'}, raw=True)", map[string]string{"text/plain": "p"}},
		"surrogates": {"'\\udcff'", map[string]string{"text/plain": `'\udcff'`}},
	} {
		r := f.mustRunCode(t, "", tc.code)
		got := map[string]string{}
		for i, d := range r.displays {
			for kind, raw := range d.Data {
				var text string
				if json.Unmarshal(raw, &text) != nil {
					text = string(raw)
				}
				if i > 0 {
					text = got[kind] + "|" + text
				}
				got[kind] = text
			}
		}
		if r.Error != nil || !maps.Equal(got, tc.data) {
			t.Errorf("%s: %q, want %q, error %+v", name, got, tc.data, r.Error)
		}
	}
	if r := f.mustRunCode(t, "", "display({'text/html': 'x' * (9 << 20), 'text/plain': 'kept'}, raw=True)"); len(r.displays) != 1 || len(r.displays[0].Data) != 1 {
		t.Errorf("a form that is too large: %d displays", len(r.displays))
	}
	if r := f.mustRunCode(t, "", "'x' * 10_000_000"); len(r.text()) > 2<<20 || !strings.HasSuffix(r.text(), "…") {
		t.Errorf("a large text: %d bytes", len(r.text()))
	}
}

func TestRunCharts(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	if f.value(t, "import sys; 'matplotlib' in sys.modules") != "false" {
		t.Fatal("matplotlib was imported without being asked for")
	}
	f.needModule(t, "matplotlib")
	f.mustRunCode(t, "", "import matplotlib.pyplot as plt, datetime")
	for name, tc := range map[string]struct {
		code  string
		main  string   // text of the main result
		chart []string // parts of each chart's JSON
	}{
		"line": {"plt.plot([1, 2], [3, 4], label='l'); plt.title('T'); plt.xlabel('Time (s)'); plt.show()", "", []string{
			`"type": "line", "title": "T"`, `{"label": "l", "points": [[1, 3], [2, 4]]}`, `"x_label": "Time (s)", "x_unit": "s", "y_label": null`, `"x_scale": "linear"`}},
		"dates": {"plt.plot([datetime.date(2023, 9, 1), datetime.date(2023, 9, 3)], [1, 10]); plt.yscale('log'); None", "", []string{
			`"points": [["2023-09-01", 1], ["2023-09-03", 10]]`, `"x_scale": "datetime"`, `"y_scale": "log"`, `"2023-09-01T00:00:00+00:00"`}},
		"categories": {"plt.plot([1, 2], ['A', 'B']); plt.show()", "", []string{`"y_scale": "categorical"`, `[[1, "A"], [2, "B"]]`}},
		"scatter":    {"plt.scatter([1, 2], [3, 4], label='d'); plt.show(); 7", "7", []string{`"type": "scatter"`, `{"label": "d", "points": [[1.0, 3.0], [2.0, 4.0]]}`}},
		"bar":        {"plt.bar(['A', 'B'], [1, 1], label='g'); plt.show()", "", []string{`{"label": "A", "group": "g", "value": 1}, {"label": "B"`}},
		"lying bar":  {"plt.barh(['A', 'B'], [1, 2]); plt.ylabel('y'); plt.show()", "", []string{`{"label": "A", "group": "Group 0", "value": 1}`, `"x_label": "y"`}},
		"pie":        {"fig, ax = plt.subplots(); ax.pie([90, 10], labels=['a', 'b'], autopct='%d'); fig", "<Figure size 640x480 with 1 Axes>", []string{`{"label": "a", "angle": 324.0, "radius": 1}`}},
		"box": {"fig, ax = plt.subplots(); ax.boxplot([[85, 90, 78, 92, 88], [95, 89, 76, 91, 84, 87]], patch_artist=True); plt.show()", "", []string{
			`{"label": "1", "min": 78.0, "first_quartile": 85.0, "median": 88.0, "third_quartile": 90.0, "max": 92.0, "outliers": []}`,
			`{"label": "2", "min": 84.0, "first_quartile": 84.75, "median": 88.0, "third_quartile": 90.5, "max": 95.0, "outliers": [76.0]}`}},
		"lying box":  {"fig, ax = plt.subplots(); ax.boxplot([[1, 2, 3, 4, 30]], vert=False, patch_artist=True); plt.show()", "", []string{`"median": 3.0`, `"outliers": [30.0]`}},
		"superchart": {"fig, axs = plt.subplots(1, 2); fig.suptitle('S'); axs[0].plot([1, 2]); axs[1].scatter([1], [2]); plt.show()", "", []string{`"type": "superchart", "title": "S"`, `"type": "line"`, `"type": "scatter"`}},
		"unknown":    {"fig, ax = plt.subplots(); ax.add_artist(plt.Circle((0, 0), 1)); plt.show()", "", []string{`{"type": "unknown", "title": null, "elements": []}`}},
	} {
		r := f.mustRunCode(t, "", tc.code)
		i := slices.IndexFunc(r.displays, func(d *wire.Display) bool { return d.Chart != nil })
		if r.Error != nil || i < 0 || !strings.HasPrefix(string(r.displays[i].Data["image/png"]), `"iVBORw0KGgo`) || r.text() != tc.main {
			t.Errorf("%s: %d displays, main %q, error %+v", name, len(r.displays), r.text(), r.Error)
			continue
		}
		for _, part := range tc.chart {
			if !strings.Contains(string(r.displays[i].Chart), part) {
				t.Errorf("%s: no %s in %s", name, part, r.displays[i].Chart)
			}
		}
	}
	if r := f.mustRunCode(t, "", "plt.get_fignums()"); r.text() != "[]" {
		t.Errorf("figures are left open: %s", r.text())
	}
}

func TestRunDataFrame(t *testing.T) {
	f := newGuest(t)
	f.startPython(t)
	f.needModule(t, "pandas")
	r := f.mustRunCode(t, "", "import pandas as pd; pd.DataFrame({'a': [1, None], 'b': ['x', pd.Timestamp('2020-01-01')]})")
	if len(r.displays) != 1 || string(r.displays[0].Data["application/vnd.forkd.table+json"]) != `{"a": [1.0, null], "b": ["x", "2020-01-01T00:00:00"]}` ||
		!strings.Contains(string(r.displays[0].Data["text/html"]), "<table") || !strings.Contains(r.text(), "2020-01-01") {
		t.Errorf("%v, %+v", r.displays, r.Error)
	}
}
