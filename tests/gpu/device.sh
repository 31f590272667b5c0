#!/usr/bin/env bash
# Everything that takes a GPU, on a machine that has one and may have nothing else: correctness, then times.
#
#     tests/gpu/device.sh pack BUILD FOLDER           where it was built: what the other machine needs, at most 48 MiB
#     tests/gpu/device.sh run [--dry] FOLDER OUT      there: OUT/device.json and OUT/device.log, in under eight minutes
#
# The other machine needs a CUDA driver, bash, coreutils, grep, sed, awk, and a glibc no older than that of the build.
# Parts run one after another, each with its own limit of time; one that fails, crashes or hangs does not keep the next
# from running, and the JSON is whole after every part. Exit status 0 if every correctness part passed, 1 if not, 2 if
# nothing could be run. docs/performance.md says what the JSON holds.
#
# --dry: small sizes and a few tests of each program, for a driver that is none (tests/gpu/driver).
set -u
export LC_ALL=C

die() {
    echo "device.sh: $*" >&2
    exit 2
}

# ---- Pack ------------------------------------------------------------------------------------------------------------

# Tests whose device is the interpreter's, whatever there is.
not_for_devices='^test_gpu_(ptx_.*|device_errors|device_script|driver.*|sim.*)$'

# Libraries that are part of any glibc system.
of_the_system='^(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libutil|libcuda)\.so'

copy_libraries() { # FOLDER: of everything in bin and plugins
    local file name path
    for file in "$1"/bin/* "$1"/plugins/*.so; do
        ldd "$file" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }'
    done | sort -u | while read -r name path; do
        [[ $name =~ $of_the_system ]] || cp -L "$path" "$1/lib/$name" || exit 1
    done
}

pack() { # BUILD FOLDER
    local build=$1 folder=$2 source file size
    source=$(cd "$(dirname "$0")/../.." && pwd)
    [ -x "$build/bin/kvant" ] || die "$build/bin/kvant is missing: build first"
    [ -x "$build/bench/gpu_speed" ] || die "$build/bench/gpu_speed is missing: it is built where nvcc is found"
    umask 022
    rm -rf "$folder"
    mkdir -p "$folder"/{bin,lib,plugins,pipelines,samples} || exit 2
    cp "$build/bin/kvant" "$build/bench/gpu_speed" "$folder/bin/"
    [ -x "$build/tests/compare_eval" ] && cp "$build/tests/compare_eval" "$folder/bin/"
    for file in "$build"/tests/test_gpu_*; do
        [[ -x $file && ! $(basename "$file") =~ $not_for_devices ]] && cp "$file" "$folder/bin/"
    done
    for file in "$build"/lib*/kvant/kvant_*.so "$build"/lib/*/kvant/kvant_*.so; do
        [ -e "$file" ] && cp "$file" "$folder/plugins/"
    done
    cp "$source"/pipelines/kivi-*.ini "$folder/pipelines/"
    cp "$source"/samples/sample.safetensors "$folder/samples/"
    cp "$source/tests/gpu/device.sh" "$folder/"
    copy_libraries "$folder" || die "libraries could not be copied"
    strip --strip-unneeded "$folder"/bin/* "$folder"/plugins/*.so "$folder"/lib/* || die "strip failed"
    {
        "$build/bin/kvant" --version
        getconf GNU_LIBC_VERSION
        git -C "$source" describe --always --dirty 2>/dev/null
    } >"$folder/manifest"
    size=$(du -sk "$folder" | cut -f1)
    [ "$size" -le $((48 * 1024)) ] || die "$folder takes $size KiB, more than 48 MiB"
    echo "device.sh: $folder: $size KiB, $(find "$folder/bin" -name 'test_gpu_*' | wc -l) test programs"
}

# ---- JSON ------------------------------------------------------------------------------------------------------------

json_string() { # of standard input
    printf '"'
    tr -d '\000-\010\013-\037\177-\377' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/\\t/g' |
        awk 'NR > 1 { printf "\\n" } { printf "%s", $0 }'
    printf '"'
}

json_text() { # TEXT
    printf '%s' "$1" | json_string
}

# A document that its program wrote in one piece.
json_file() { # FILE
    local first last
    [ -s "$1" ] || return 1
    first=$(head -c 1 "$1") last=$(tail -c 2 "$1" | tr -d '\n')
    [ "$first" = '{' ] && [ "${last: -1}" = '}' ]
}

write_json() {
    {
        printf '{"format": "kvant.device/1", "passed": %s, "whole": %s, "dry": %s,\n' "$passed" "$whole" "$dry"
        printf ' "seconds": %s, "budget_seconds": %s,\n "manifest": ' "$SECONDS" "$budget"
        json_string <"$folder/manifest"
        printf ',\n "host": {"system": %s, "glibc": %s, "processors": %s},\n' \
            "$(json_text "$(uname -srm)")" "$(json_text "$(getconf GNU_LIBC_VERSION 2>/dev/null)")" "$(nproc)"
        printf ' "nvidia_smi": '
        if [ -s "$work/smi.json" ]; then cat "$work/smi.json"; else printf 'null'; fi
        printf ',\n "parts": [\n'
        cat "$work/parts"
        printf ']}\n'
    } >"$out/device.json.part" && mv "$out/device.json.part" "$out/device.json"
}

# ---- Parts -----------------------------------------------------------------------------------------------------------

# A part that did not run.
record_absence() { # NAME KIND STATUS REASON
    whole=false
    [ "$3" != missing ] && [ "$2" = correctness ] && passed=false
    [ -s "$work/parts" ] && printf ',\n' >>"$work/parts"
    printf '  {"name": %s, "kind": "%s", "status": "%s", "reason": %s}' \
        "$(json_text "$1")" "$2" "$3" "$(json_text "$4")" >>"$work/parts"
    echo "device.sh: $1: $3: $4"
    write_json
}

count() { # LOG WORD: of cmocka's summary
    sed -n "s/^\[  $2 \] \([0-9]*\) test(s).*/\1/p" "$1" | awk '{ n += $1 } END { print n + 0 }'
}

# Runs a command and records what became of it. RESULT is where its JSON comes to lie: - for nowhere, FILE for its
# standard output, @FILE for a file that it writes itself.
part() { # NAME KIND SECONDS RESULT COMMAND...
    local name=$1 kind=$2 limit=$3 result=${4#@} output=$4 log=$work/log status reason='' rc begin seconds left
    local ok skips fails
    shift 4
    rm -f "$result"
    left=$((budget - SECONDS - 5))
    [ "$kind" = correctness ] && left=$((left - reserve))
    [ "$limit" -gt "$left" ] && limit=$left
    if [ "$limit" -lt 2 ]; then
        record_absence "$name" "$kind" skipped 'no time left'
        return 1
    fi
    begin=$(date +%s%N)
    if [ "$output" = "$result" ] && [ "$output" != - ]; then
        timeout -k 5 "$limit" "$@" >"$output" 2>"$log" </dev/null
    else
        timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null
    fi
    rc=$?
    seconds=$(awk -v ns=$(($(date +%s%N) - begin)) 'BEGIN { printf "%.2f", ns / 1e9 }')
    ok=$(grep -c '^\[       OK \]' "$log") skips=$(count "$log" SKIPPED) fails=$(count "$log" 'FAILED ')
    case $rc in
    0) status=passed ;;
    124 | 137) status=timeout reason="it took more than $limit s" ;;
    126 | 127) status=failed reason='it could not be started' ;;
    *) if [ "$rc" -gt 128 ]; then status=crashed reason="signal $((rc - 128))"; else status=failed; fi ;;
    esac
    if [ $status = passed ] && [ "$ok" = 0 ] && [ "$skips" != 0 ]; then
        status=skipped reason='all of its tests were skipped'
    fi
    if [ $status != passed ]; then
        whole=false
        [ "$kind" = correctness ] && passed=false
    fi
    [ -s "$work/parts" ] && printf ',\n' >>"$work/parts"
    {
        printf '  {"name": %s, "kind": "%s", "status": "%s", "exit": %s, "seconds": %s,\n' \
            "$(json_text "$name")" "$kind" $status $rc "$seconds"
        printf '   "tests_passed": %s, "tests_skipped": %s, "tests_failed": %s, "reason": %s, "tail": ' \
            "$ok" "$skips" "$fails" "$(json_text "$reason")"
        if [ $status = passed ]; then printf '""'; else tail -n 40 "$log" | json_string; fi
        printf ', "result": '
        if json_file "$result"; then cat "$result"; else printf 'null'; fi
        printf '}'
    } >>"$work/parts"
    {
        echo "==== $name: $status (exit status $rc, $seconds s): $*"
        cat "$log"
    } >>"$out/device.log"
    echo "device.sh: $name: $status ($seconds s)${reason:+: $reason}"
    [ $status = passed ] || tail -n 8 "$log" | sed 's/^/    /'
    write_json
    [ $status = passed ]
}

# The fields that nvidia-smi knows, and what it shows to people.
smi() {
    local field value all='' names='name driver_version vbios_version pstate temperature.gpu power.draw
        power.limit clocks.sm clocks.mem clocks.max.sm clocks.max.mem memory.total memory.used ecc.mode.current
        mig.mode.current compute_cap utilization.gpu'
    command -v nvidia-smi >/dev/null || return 127
    timeout 20 nvidia-smi || return
    for field in $names; do
        value=$(timeout 20 nvidia-smi --query-gpu="$field" --format=csv,noheader 2>/dev/null | head -n 1)
        all+="${all:+, }$(json_text "$field"): $(json_text "$value")"
    done
    printf '{%s}' "$all" >"$work/smi.json"
}

# Drivers that no loader's cache knows: containers put them here.
find_driver() {
    local folder
    ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' && return
    for folder in ${LD_LIBRARY_PATH:+${LD_LIBRARY_PATH//:/ }} /usr/local/nvidia/lib64 /usr/local/nvidia/lib \
        /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib/wsl/lib /usr/local/cuda/compat; do
        [ -e "$folder/libcuda.so.1" ] || continue
        export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
        return
    done
}

# Some tests of a program, where all would take an interpreter minutes.
dry_filter() { # PROGRAM
    case $1 in
    test_gpu_codec_kivi) echo not_finite ;;
    test_gpu_graph_step) echo fused ;;
    *) echo none ;;
    esac
}

tests() {
    local program filter
    for program in "$folder"/bin/test_gpu_*; do
        [ -x "$program" ] || continue
        filter=
        if [ $dry = true ]; then
            filter=$(dry_filter "$(basename "$program")")
            [ "$filter" = none ] && continue
        fi
        KVANT_GPU=real part "$(basename "$program")" correctness 90 - "$program" ${filter:+"$filter"}
    done
}

eval_part() { # PIPELINE
    local name pipeline=$1 dump=$folder/samples/sample.safetensors
    name=eval_$(basename "$pipeline" .ini)
    if ! [ -x "$folder/bin/compare_eval" ]; then
        record_absence "$name" correctness missing 'compare_eval was not built'
        return
    fi
    local command=("$folder/bin/kvant" eval --json --layers "$pipeline" "$dump")
    part "${name}_cpu" facts 60 "$work/cpu.json" "${command[@]}" || return
    part "$name" correctness 60 "$work/gpu.json" "${command[@]}" --device 0 || return
    part "${name}_equal" correctness 20 - "$folder/bin/compare_eval" "$work/cpu.json" "$work/gpu.json"
}

run() { # with folder and out
    local rest pipeline
    mkdir -p "$out" || die "$out cannot be made"
    work=$(mktemp -d) || exit 2
    trap 'rm -rf "$work"' EXIT
    : >"$work/parts"
    : >"$out/device.log"
    [ -x "$folder/bin/gpu_speed" ] || die "$folder/bin/gpu_speed is missing: $folder was not packed"
    find_driver
    export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export KVANT_PLUGIN_PATH="$folder/plugins"
    chmod -R go-w "$folder" 2>/dev/null # the library takes no plugin that others may write

    if smi >"$work/smi.log" 2>&1; then
        cat "$work/smi.log" >>"$out/device.log"
        echo "device.sh: $(head -c 600 "$work/smi.json")"
    else
        echo "device.sh: no nvidia-smi"
    fi
    part command facts 20 - "$folder/bin/kvant" list || {
        echo "device.sh: the command does not run here" >&2
        passed=false
        write_json
        exit 2
    }
    if ! part device correctness 60 "$work/describe.json" "$folder/bin/gpu_speed" --describe; then
        echo "device.sh: there is no device to go on with" >&2
        exit 1
    fi
    part plain correctness 60 "$work/plain.json" "$folder/bin/gpu_speed" --check
    tests
    if [ $dry = true ]; then
        eval_part "$folder/pipelines/kivi-2.ini"
    else
        for pipeline in "$folder"/pipelines/kivi-*.ini; do eval_part "$pipeline"; done
        part check_kivi correctness 120 "$work/check.json" "$folder/bin/kvant" check --gpu kivi --json --memory 16384
    fi
    reserve=0
    rest=$((budget - SECONDS - 20))
    [ "$rest" -gt 200 ] && rest=200
    local how=(--seconds $((rest * 3 / 4)))
    [ $dry = true ] && how=(--tiny)
    part speed timing "$rest" "@$work/speed.json" "$folder/bin/gpu_speed" "${how[@]}" --out "$work/speed.json"
    write_json
    echo "device.sh: passed: $passed, whole: $whole, $SECONDS s: $out/device.json"
    [ $passed = true ]
}

# ----------------------------------------------------------------------------------------------------------------------

passed=true whole=true dry=false budget=${KVANT_DEVICE_SECONDS:-450} reserve=${KVANT_DEVICE_RESERVE:-150}
case ${1:-} in
pack)
    [ $# = 3 ] || die 'usage: device.sh pack BUILD FOLDER'
    pack "$2" "$3"
    ;;
run)
    shift
    if [ "${1:-}" = --dry ]; then
        dry=true reserve=0
        shift
    fi
    [ $# = 2 ] || die 'usage: device.sh run [--dry] FOLDER OUT'
    folder=$(cd "$1" 2>/dev/null && pwd) || die "$1 is missing: pack first"
    out=$2
    run
    ;;
*) die 'usage: device.sh pack BUILD FOLDER | run [--dry] FOLDER OUT' ;;
esac
