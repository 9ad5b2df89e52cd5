# docker build --build-arg TORCH=cpu|cuda -t lmi-server:cpu|cuda .
#
# Stages: `base` has Python and the system packages for serving, `dependencies` creates /opt/lmi/.venv, and `build`
# compiles the server. The image is `base` plus the results of the other two. Editing a source file does not rebuild
# `dependencies`.
ARG TORCH=cpu
ARG CPU_BASE=python:3.11-slim-bookworm
ARG CUDA_BASE=nvidia/cuda:13.0.1-base-ubuntu24.04

FROM ${CPU_BASE} AS base-cpu

# Triton compiles its launchers with gcc when the server starts.
FROM ${CUDA_BASE} AS base-cuda
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates gcc libc6-dev python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM base-${TORCH} AS dependencies
ARG TORCH
WORKDIR /opt/lmi
COPY container/requirements requirements
RUN echo "installing the dependencies" \
    && python3 -m venv .venv \
    && if [ "$TORCH" = cpu ]; then .venv/bin/python -m pip install --no-cache-dir --no-deps \
        --index-url https://download.pytorch.org/whl/cpu --requirement requirements/torch-cpu.txt; fi \
    && .venv/bin/python -m pip install --no-cache-dir --no-deps --require-hashes \
        --requirement requirements/${TORCH}.txt \
    && echo /opt/lmi > "$(echo .venv/lib/python3.*/site-packages)/lmi.pth"

FROM base-${TORCH} AS build
ARG TORCH
RUN apt-get update && apt-get install --yes --no-install-recommends g++ libc6-dev
WORKDIR /opt/build
# Same path as in the last stage, because scripts contain the path of their interpreter.
COPY container/requirements requirements
RUN python3 -m venv /opt/lmi/.venv && grep ^setuptools== requirements/${TORCH}.txt > setuptools.txt \
    && /opt/lmi/.venv/bin/python -m pip install --no-deps --require-hashes --requirement setuptools.txt
COPY pyproject.toml MANIFEST.in README.md LICENSE ./
COPY container container
COPY lmi_server lmi_server
COPY engines engines
COPY kernels kernels
COPY properties_examples server/properties_examples
RUN /opt/lmi/.venv/bin/python -m pip install --no-deps --no-index --no-build-isolation --target server . \
    && cc -shared -fPIC -O1 -o server/container/run/loopback.so container/run/loopback.c \
    && test -e server/lmi_kernels/cpu/_native*.so

FROM base-${TORCH}
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true
LABEL com.amazonaws.sagemaker.capabilities.multi-models=true
LABEL org.opencontainers.image.licenses=Apache-2.0
# The container can run as any user and on a read-only file system. It writes only below /tmp.
ENV PATH=/opt/lmi/bin:/opt/lmi/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
# Mount a model here, or name a model in OPTION_MODEL_ID.
RUN mkdir -p /opt/ml/model
WORKDIR /opt/lmi
EXPOSE 8080
ENTRYPOINT ["/opt/lmi/container/entrypoint.sh"]
CMD ["serve"]
COPY --from=dependencies /opt/lmi/.venv .venv
COPY --from=build /opt/build/server ./
