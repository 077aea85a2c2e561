# The service with the demo bundles, for CPUs (the default) or NVIDIA GPUs:
#   docker build -t attenuator .
#   docker run -p 8000:8000 attenuator
#   docker build -t attenuator-gpu --build-arg DEVICE=gpu .
#   docker run --gpus all -p 8000:8000 attenuator-gpu
# Kernels are compiled for six GPU architectures; for those of your own GPUs alone (H100: 90-real) several times as fast:
#   docker build -t attenuator-gpu --build-arg DEVICE=gpu --build-arg CUDA_ARCHITECTURES=90-real .
# Labels with version and commit: docker build $(scripts/image_args.sh) -t attenuator .
# It needs no right to write but in /var/tmp, and no capability:
#   docker run --read-only --tmpfs /var/tmp --cap-drop ALL --security-opt no-new-privileges -p 127.0.0.1:8000:8000 attenuator
# A mirror of the package index: --build-arg PIP_INDEX_URL=URL, or, where the address holds a password or more than one
# line is needed, --secret id=pip,src=$HOME/.config/pip/pip.conf, which stays out of the image and its history.
ARG BASE=debian:12-slim
ARG DEVICE=cpu
ARG VERSION=unknown
ARG REVISION=unknown

FROM ${BASE} AS build
ARG DEVICE
ARG CUDA_ARCHITECTURES=
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# A base that brings its own Python, such as python:3.11-slim, keeps it: both stages must run the same one.
RUN apt-get update -q \
    && apt-get install -qy --no-install-recommends ca-certificates g++ \
    && { command -v python3 >/dev/null || apt-get install -qy --no-install-recommends python3 python3-venv; }
WORKDIR /src
COPY scripts/build_tools.txt scripts/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv /tools && /tools/bin/pip install --quiet --no-cache-dir -r scripts/build_tools.txt
COPY . .
# GPU: CMake fetches nvcc as wheels (scripts/cuda_toolkit.sh), so that no image of a CUDA vendor is needed to build.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    case "$DEVICE" in cpu) cuda=OFF ;; gpu) cuda=ON ;; *) echo "DEVICE is '$DEVICE', must be cpu or gpu" >&2; exit 1 ;; esac \
    && PATH="/tools/bin:$PATH" pip wheel --quiet --no-build-isolation --no-deps --wheel-dir /dist \
         --config-settings=cmake.define.ATTENUATOR_CUDA=$cuda \
         ${CUDA_ARCHITECTURES:+"--config-settings=cmake.define.ATTENUATOR_CUDA_ARCHITECTURES=$CUDA_ARCHITECTURES"} .
# The service's own environment has neither pip nor build tools, nor the tests that NumPy and others install. The GPU's
# ONNX Runtime brings CUDA and cuDNN as wheels.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/attenuator \
    && /tools/bin/pip --python /opt/attenuator/bin/python install --quiet --no-cache-dir "$(ls /dist/*.whl)[$DEVICE]" \
    && find /opt/attenuator/lib -type d -name tests -prune -exec rm -r {} +

FROM ${BASE} AS runtime
ENV DEBIAN_FRONTEND=noninteractive
RUN command -v python3 >/dev/null \
    || { apt-get update -q && apt-get install -qy --no-install-recommends python3 \
         && rm -rf /var/lib/apt/lists/* /var/cache/apt/*; }
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin attenuator
COPY --from=build /opt/attenuator /opt/attenuator
COPY examples/bundles /bundles
USER 10001:10001
ENV PATH=/opt/attenuator/bin:$PATH PYTHONUNBUFFERED=1 ATTENUATOR_HOST=0.0.0.0 ATTENUATOR_PORT=8000
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"ATTENUATOR_PORT\"]}/health/ready', timeout=4)"]
# Bundles of your own: mount them below /bundles.
CMD ["attenuator", "serve", "/bundles"]

# The bill of materials: Python packages, Debian packages, models.
FROM build AS sbom
ARG VERSION
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /tools/bin/pip install --quiet --no-cache-dir -r scripts/sbom_tools.txt
COPY --from=runtime /var/lib/dpkg/status /runtime/status
COPY --from=runtime /etc/os-release /runtime/os-release
RUN installed=$(/opt/attenuator/bin/python -c 'import importlib.metadata as m; print(m.version("attenuator"))') \
    && case "$VERSION" in unknown | "$installed") ;; *) echo "VERSION is '$VERSION', must be $installed" >&2; exit 1 ;; esac \
    && /tools/bin/python scripts/sbom.py --python /opt/attenuator/bin/python --dpkg /runtime/status \
         --os-release /runtime/os-release --bundles examples/bundles --version "$installed" >/sbom.cdx.json

FROM runtime AS runtime-cpu

FROM runtime AS runtime-gpu
# Without a GPU the server of this image stops with a sentence; `-e ATTENUATOR_DEVICE=auto` lets it go on on the CPU.
ENV ATTENUATOR_DEVICE=cuda ATTENUATOR_MAX_BATCH_TOKENS=65536 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM runtime-${DEVICE}
ARG VERSION
ARG REVISION
COPY --from=sbom /sbom.cdx.json /usr/share/attenuator/sbom.cdx.json
LABEL org.opencontainers.image.title="Attenuator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
