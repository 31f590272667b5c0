#!/usr/bin/env bash
# Installs the build, moves the tree, builds a `kvant new` project against it, installs that and loads it by name; then
# the same for a C program by way of pkg-config. Usage: out_of_tree.sh BUILD_DIR COMPILER FLAGS
set -euo pipefail
build=$1 compiler=$2 flags=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
unset KVANT_PLUGIN_PATH

fail() {
    echo "out_of_tree: $*" >&2
    exit 1
}

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"
prefix=$work/moved
! grep -rIl "$work/first" "$prefix" || fail "the installation holds its prefix"
kvant=$prefix/bin/kvant

"$kvant" list >"$work/list"
for name in raw uniform kivi; do
    grep -q "^$name " "$work/list" || fail "the moved installation does not list $name: $(cat "$work/list")"
done

cd "$work"
"$kvant" new mycodec >/dev/null
! grep -rq template kvant_mycodec || fail "the word template is left in the project"
"$kvant" new mycodec >/dev/null 2>&1 && fail "an existing directory was overwritten"
cmake -S kvant_mycodec -B kvant_mycodec/build -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$compiler" \
    -DCMAKE_C_FLAGS="$flags -Wall -Wextra -Wpedantic -Wconversion -Werror" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build kvant_mycodec/build >/dev/null
ctest --test-dir kvant_mycodec/build --output-on-failure --no-tests=error
"$kvant" info mycodec >/dev/null 2>&1 && fail "found before it was installed"
"$kvant" --plugin-path "$work/kvant_mycodec/build" info mycodec | grep -q mycodec || fail "not found on --plugin-path"
cmake --install kvant_mycodec/build --prefix "$prefix" >/dev/null
"$kvant" info mycodec | grep -q mycodec || fail "not found by name once installed"
"$kvant" eval mycodec "$prefix/share/kvant/samples/sample.safetensors" | grep -q mycodec || fail "eval does not take it"

cat >program.c <<'END'
#include <kvant/kvant.h>
#include <stdio.h>
int main(void) {
    kvant_diag diag = {.struct_size = sizeof diag};
    const kvant_plugin *plugin = NULL;
    if (kvant_plugin_find("kivi", &plugin, &diag) != KVANT_OK) return puts(diag.message), 1;
    return puts(plugin->descriptor->title), 0;
}
END
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name kvant.pc)")
libdir=$(pkg-config --variable=libdir kvant)
# shellcheck disable=SC2046,SC2086
"$compiler" $flags program.c $(pkg-config --cflags --libs kvant) -Wl,-rpath,"$libdir" -o program
./program | grep -q KIVI || fail "the program does not find kivi through libkvant"
[ "$(pkg-config --modversion kvant)" = "$("$kvant" --version | sed 's/kvant \([0-9.]*\),.*/\1/')" ] ||
    fail "versions differ"
echo "out_of_tree: passed"
