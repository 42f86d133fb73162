# The sidecar's image: `docker build -t extproc:0.1.0 .`
#
# pip installs only packages that are pinned with their hashes (manifests/image/), also to build.
# The C compiler is Debian's and is not in the final image. `make pin` adds the base image's digest to
# both FROM lines; `make sbom` lists the packages.

FROM python:3.13.16-slim-trixie AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
# Versions are not pinned, because Debian keeps only the last one of a release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# The dependencies have a layer of their own, because they change less often than the package.
COPY manifests/image/requirements.txt manifests/image/build-requirements.txt ./
RUN python -m venv /opt/extproc \
    && /opt/extproc/bin/pip install --require-hashes --only-binary :all: -r requirements.txt \
    && pip install --require-hashes --only-binary :all: -r build-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY envoy ./envoy
# .dockerignore keeps the laboratory (extproc/lab) out of the image.
COPY extproc ./extproc
# mypyc compiles the request path, and needs the types of the dependencies.
# gcc spends half of its time on warnings about mypyc's C code: -w turns them off.
RUN HATCH_BUILD_HOOK_ENABLE_MYPYC=1 CFLAGS=-w PYTHONPATH=/opt/extproc/lib/python3.13/site-packages \
    pip wheel --no-build-isolation --no-deps --no-index --wheel-dir /tmp/wheel . \
    && /opt/extproc/bin/pip install --no-deps --no-index /tmp/wheel/*.whl \
    && /opt/extproc/bin/pip uninstall --yes pip

FROM python:3.13.16-slim-trixie
LABEL org.opencontainers.image.title="extproc" \
      org.opencontainers.image.description="Envoy ext_proc sidecar that routes LLM requests to the vLLM replica whose prefix cache is warm" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.base.name="python:3.13.16-slim-trixie"
# Nothing is installed from here on, so pip is removed.
RUN python -m pip uninstall --yes pip
COPY --from=build /opt/extproc /opt/extproc
ENV PATH=/opt/extproc/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can check that the user is not root.
USER 65532:65532
# The ext_proc port and the admin port. By default both listen on loopback only. Outside a pod,
# set --listen=0.0.0.0:9002 and --admin=0.0.0.0:9090.
EXPOSE 9002 9090
# For Docker; Kubernetes has its own probes and ignores it. With another admin port, turn it off
# (--no-healthcheck) or replace it.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9090/healthz', timeout=2)"]
ENTRYPOINT ["extproc"]
CMD ["serve"]
