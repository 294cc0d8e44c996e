# Sourced by .ci/run: an engine for the tests of the docker sandbox. One that answers already is used, and left running.
engine=""
engine_log="$(mktemp)"

engine_answers() { curl --silent --fail --max-time 5 --unix-socket /var/run/docker.sock http://docker/_ping >/dev/null 2>&1; }

start_engine() {
  engine_answers && return
  dockerd >"$engine_log" 2>&1 &
  engine=$!
  trap stop_engine EXIT
  for _ in $(seq 120); do
    engine_answers && return
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.5
  done
  echo "dockerd does not answer; its last words:"; tail -n 5 "$engine_log"; exit 2
}

stop_engine() { kill "$engine" 2>/dev/null && wait "$engine" || true; rm -f "$engine_log"; }
