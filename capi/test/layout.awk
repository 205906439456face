# SPDX-License-Identifier: Apache-2.0
#
# Prints, of the preprocessed mooncake.h, a C program that prints the layout of every struct and every enumerator.

function trim(s) { gsub(/^[ \t]+|[ \t]+$/, "", s); return s }
function say(s) { body = body "    " s "\n" }

/^[ \t]*#/ { next }
{ text = text " " $0 }

END {
    n = split(text, parts, /[{}]/)
    for (i = 2; i <= n; i += 2) { # what is between braces; what is before it tells what it is
        before = parts[i - 1]
        if (match(before, /struct mooncake_[a-z_]+[ \t]*$/)) {
            type = trim(substr(before, RSTART, RLENGTH))
            say("printf(\"%s: %zu\\n\", \"" type "\", sizeof(" type "));")
            m = split(parts[i], fields, ";")
            for (j = 1; j < m; j++) {
                k = split(fields[j], names, ",")
                for (l = 1; l <= k; l++) {
                    f = names[l]
                    sub(/\[.*/, "", f)
                    match(f, /[a-z0-9_]+[ \t]*$/)
                    f = trim(substr(f, RSTART))
                    say("FIELD(" type ", " f ");")
                }
            }
        } else if (match(before, /enum[ \t]*$/)) {
            m = split(parts[i], values, ",")
            for (j = 1; j <= m; j++)
                if (match(values[j], /MOONCAKE_[A-Z0-9_]+/)) {
                    v = substr(values[j], RSTART, RLENGTH)
                    say("printf(\"%s = %d\\n\", \"" v "\", " v ");")
                }
        }
    }
    print "#include <stdio.h>"
    print "#include <string.h>"
    print "#include \"mooncake.h\""
    print "#define FIELD(s, f) printf(\"  %s @%zu %zu\\n\", #f, offsetof(s, f), sizeof(((s *)0)->f))"
    print "int main(void) {"
    printf "%s", body
    print "    printf(\"MOONCAKE_ABI_VERSION = %d\\n\", MOONCAKE_ABI_VERSION);"
    print "    printf(\"MOONCAKE_MAX_KEY = %d\\n\", MOONCAKE_MAX_KEY);"
    print "    printf(\"MOONCAKE_MAX_BATCH = %d\\n\", MOONCAKE_MAX_BATCH);"
    print "    for (int code = 0; code > -4096; code--)"
    print "        if (strcmp(mooncake_error_name(code), \"UNKNOWN\") != 0)"
    print "            printf(\"%d %s\\n\", code, mooncake_error_name(code));"
    print "}"
}
