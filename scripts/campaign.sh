#!/usr/bin/env bash
# Run the campaign on a real card, one stage per command: scripts/campaign.sh A (then B to E, G, H, I and F). `list` explains the stages.
# A stage ends after CAMPAIGN_LIMIT_S seconds [500], and the same command continues it. Further words after the letter are
# passed to the sweeps of the stage. Nothing is downloaded.
#   CAMPAIGN_DIR      folder of all results, outside of the checkout [../campaign]
#   CAMPAIGN_ARCHIVE  folder of the parts of the archive: read at the start, written at the end [none]
#   CAMPAIGN_WHEELS   folder of wheels that this machine lacks (scripts/offline_wheels.sh), installed into CAMPAIGN_DIR
#   PYTHON            the interpreter [the first that exists of .venv/bin/python, python3, python]
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${CAMPAIGN_DIR:-../campaign}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

python=${PYTHON:-}
for candidate in .venv/bin/python python3 python; do
    if [ -z "$python" ] && command -v "$candidate" > /dev/null; then python=$candidate; fi
done
if [ -z "$python" ]; then
    echo "No Python was found. Set PYTHON to an interpreter." >&2
    exit 2
fi

if [ -n "${CAMPAIGN_WHEELS:-}" ]; then
    if [ ! -d "$folder/site" ]; then
        "$python" -m pip install --quiet --no-index --no-deps --no-compile --disable-pip-version-check \
            --target "$folder/site.new" "$CAMPAIGN_WHEELS"/*.whl
        mv "$folder/site.new" "$folder/site"
    fi
    export PYTHONPATH=$folder/site${PYTHONPATH:+:$PYTHONPATH}
fi

if [ "${1:-}" = list ]; then
    exec "$python" -m maintenance.campaign list
fi
letter=${1:-}
if [ $# -gt 0 ]; then shift; fi
archive=()
if [ -n "${CAMPAIGN_ARCHIVE:-}" ]; then archive=("archive=$CAMPAIGN_ARCHIVE"); fi
exec "$python" -m maintenance.campaign stage "$letter" "$folder" \
    "limit_s=${CAMPAIGN_LIMIT_S:-500}" ${archive[@]+"${archive[@]}"} "$@"
