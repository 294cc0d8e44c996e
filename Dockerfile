# gymcp for machines that are not Linux. How to run it, and what the run flags weaken: docs/start/install.md.
#   docker build -t gymcp .                                  (with training: --build-arg EXTRAS='[train]')
# BASE is any image of a glibc Linux with Python 3.11 or newer. If the folder wheels/ is there, all is installed from it and nothing is
# fetched; it must then hold gymcp's wheel, and pip's if BASE has no pip (.ci/dockerfile makes it).
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
LABEL gymcp.stage=build
ARG EXTRAS=
COPY . /src
WORKDIR /src
RUN set -eu; \
    python3 -m venv --without-pip /opt/gymcp; \
    if [ -d wheels ]; then \
      pip=$(echo wheels/pip-*.whl); \
      /opt/gymcp/bin/python "$pip/pip" install --quiet --no-cache-dir --no-index --find-links wheels "gymcp${EXTRAS}"; \
    else \
      python3 -m pip --python /opt/gymcp/bin/python install --quiet --no-cache-dir --constraint constraints.txt ".${EXTRAS}"; \
    fi

FROM ${BASE}
COPY --from=build /opt/gymcp /opt/gymcp
RUN useradd --create-home --uid 1000 gymcp
COPY --chown=1000:1000 examples /home/gymcp/examples
COPY --chown=1000:1000 recipes /home/gymcp/recipes
ENV PATH=/opt/gymcp/bin:$PATH
USER 1000
WORKDIR /home/gymcp
CMD ["gymcp", "--help"]
