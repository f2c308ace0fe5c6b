#!/usr/bin/env bash
# Install Debian's Chromium, with which tests open report.html. Without it these tests are skipped.
set -euo pipefail
if command -v chromium > /dev/null; then
    exit 0
fi
if ! command -v apt-get > /dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "Chromium is not installed: install it (Debian: apt-get install chromium) to test the page in a browser." >&2
    exit 0
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null
