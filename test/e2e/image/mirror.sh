# shellcheck shell=bash
# Finds a Debian mirror in this machine's own apt sources. Sourced by build.sh.

# apt_uris prints "URI SUITES COMPONENTS" (lists joined by commas) for each enabled deb
# entry, one-line files first, then deb822 ones.
apt_uris() {
    local dir=${APT_DIR:-/etc/apt} files=() f
    for f in "$dir/sources.list" "$dir"/sources.list.d/*.list; do
        [ -f "$f" ] && files+=("$f")
    done
    # deb [option=value ...] URI SUITE COMPONENT...
    ((${#files[@]} == 0)) || awk '$1 == "deb" {
        sub(/#.*/, ""); sub(/^[ \t]*deb[ \t]+(\[[^]]*\][ \t]+)?/, "")
        n = split($0, w, /[ \t]+/); c = ""
        for (i = 3; i <= n; i++) if (w[i] != "") c = c "," w[i]
        print w[1], w[2], substr(c, 2)
    }' "${files[@]}"

    files=()
    for f in "$dir"/sources.list.d/*.sources; do
        [ -f "$f" ] && files+=("$f")
    done
    # Paragraphs of "Key: value value"; a comment may stand inside a paragraph.
    ((${#files[@]} == 0)) || awk '
        function flush(   i, n, u) {
            if (v["types"] ~ /(^| )deb( |$)/ && v["enabled"] !~ /^(no|false|off|0)$/) {
                n = split(v["uris"], u, / +/); gsub(/ +/, ",", v["suites"]); gsub(/ +/, ",", v["components"])
                for (i = 1; i <= n; i++) if (u[i] != "") print u[i], v["suites"], v["components"]
            }
            split("", v)
        }
        /^#/ { next }
        FNR == 1 || /^[ \t]*$/ { flush(); key = "" }
        /^[ \t]+[^ \t]/ { if (key != "") v[key] = v[key] " " $0; gsub(/[ \t]+/, " ", v[key]); next }
        /^[A-Za-z-]+:/ {
            key = tolower($0); sub(/:.*/, "", key)
            val = $0; sub(/^[^:]*:[ \t]*/, "", val); gsub(/[ \t]+/, " ", val); sub(/ $/, "", val); v[key] = val
        }
        END { flush() }' "${files[@]}"
}

# debian_mirror SUITE prints the first mirror that really carries Debian's SUITE.
debian_mirror() {
    local suite=$1 uri suites components probe
    probe=$(mktemp -d)
    while read -r uri suites components; do
        case ,$components, in *,main,*) ;; *) continue ;; esac
        case $suites in *-security* | */updates*) continue ;; esac
        # Cloud images keep their mirrors in a list of their own.
        case $uri in mirror+file:*) uri=$(awk '!/^#/ && NF { print $1; exit }' "${uri#mirror+file:}") ;; esac
        uri=${uri%/}
        # apt's own downloader, so that its proxy and certificate settings apply.
        rm -f "$probe/InRelease"
        /usr/lib/apt/apt-helper download-file "$uri/dists/$suite/InRelease" "$probe/InRelease" >/dev/null 2>&1 || continue
        grep -q '^Origin: Debian$' "$probe/InRelease" || continue
        rm -rf "$probe"
        printf '%s\n' "$uri"
        return
    done < <(apt_uris)
    rm -rf "$probe"
    echo "build.sh: no apt source of this machine carries Debian $suite; set MIRROR" >&2
    return 1
}
