# SPDX-License-Identifier: Apache-2.0
#
# Prints the prototypes of the preprocessed mooncake.h for calls.c:
# FUNCTION("name", "result", address, ARG("type", "name") ...)

function trim(s) { gsub(/^[ \t]+|[ \t]+$/, "", s); return s }

/^[ \t]*#/ { next }
{ text = text " " $0 }

END {
    n = split(text, parts, ";")
    for (i = 1; i <= n; i++) {
        if (!match(parts[i], /mooncake_[a-z0-9_]+\(/)) continue
        result = substr(parts[i], 1, RSTART - 1)
        name = substr(parts[i], RSTART, RLENGTH - 1)
        rest = substr(parts[i], RSTART + RLENGTH)
        sub(/.*[{}]/, "", result) # extern "C" {
        sub(/\).*/, "", rest)
        result = trim(result)
        if (result !~ /^(int|int64_t|void|const char \*|mooncake_store_t)$/) continue
        printf "FUNCTION(\"%s\", \"%s\", %s", name, result, name
        m = split(rest, args, ",")
        for (j = 1; j <= m; j++) {
            a = trim(args[j])
            gsub(/[ \t]+/, " ", a)
            if (a == "void" || !match(a, /[a-z0-9_]+$/)) continue
            printf ", ARG(\"%s\", \"%s\")", trim(substr(a, 1, RSTART - 1)), substr(a, RSTART)
        }
        print ")"
    }
}
