package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed templates/*.html
var sources embed.FS

//go:embed assets
var assetFiles embed.FS

// templates has the pages by their file names.
var templates = parse()

func parse() map[string]*template.Template {
	names, err := fs.Glob(sources, "templates/*.html")
	if err != nil {
		panic(err) // cannot happen: the pattern is constant
	}
	const frame = "templates/frame.html"
	base := template.Must(template.New("frame.html").Funcs(functions).ParseFS(sources, frame, "templates/parts.html"))
	all := make(map[string]*template.Template)
	for _, name := range names {
		all[path.Base(name)] = template.Must(template.Must(base.Clone()).ParseFS(sources, name))
	}
	return all
}

// render writes a page whole or not at all. It tells a browser that has the same page that nothing
// has changed.
func (h *Handler) render(w http.ResponseWriter, v *visit, name string, status int) {
	v.Done = v.said()
	var page bytes.Buffer
	if err := templates[name].ExecuteTemplate(&page, "frame.html", v); err != nil {
		h.config.Logger.Error("dashboard: a page could not be rendered", err, nil)
		http.Error(w, "This page could not be rendered; the log says why.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if status == http.StatusOK && v.r.Method != http.MethodPost {
		tag := `"` + digest(page.Bytes()) + `"`
		w.Header().Set("ETag", tag)
		if v.r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	w.Header().Set("Content-Length", strconv.Itoa(page.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes()) // the client may be gone
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// asset is an embedded file. Its name contains its digest, so browsers can keep it for ever.
type asset struct {
	kind string
	body []byte
}

var assets, assetNames = loadAssets()

func loadAssets() (byPath map[string]asset, byName map[string]string) {
	files, err := fs.ReadDir(assetFiles, "assets")
	if err != nil {
		panic(err) // cannot happen: the file is embedded
	}
	byPath, byName = make(map[string]asset), make(map[string]string)
	for _, f := range files {
		body, err := assetFiles.ReadFile("assets/" + f.Name())
		if err != nil {
			panic(err)
		}
		kind := path.Ext(f.Name())
		named := strings.TrimSuffix(f.Name(), kind) + "." + digest(body) + kind
		byPath[named], byName[f.Name()] = asset{mime.TypeByExtension(kind), body}, named
	}
	return byPath, byName
}

func (a asset) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(a.body) // the client may be gone
	}
}
