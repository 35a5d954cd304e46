# `docker build -t tpuctl .` in a checkout; docs/how-to/a-container.md says how to use the image.
# `--target sandbox` also has the ssh server that workers of the sandbox are.
# `--build-arg SOURCE=dist/WHEEL` installs that wheel instead of the checkout.
FROM python:3.13-slim AS build
ARG SOURCE=.
WORKDIR /src
COPY . .
RUN python -m venv --without-pip /opt/tpuctl \
 && python -m pip --python /opt/tpuctl/bin/python install --no-cache-dir --disable-pip-version-check "./$SOURCE"

FROM python:3.13-slim AS base
# tini ends what is left of shared ssh connections. libnss-unknown: ssh refuses to run for a user id without an account, as
# that of `docker run --user 1234` or of OpenShift.
RUN useradd --uid 1000 --create-home tpuctl \
 && mkdir /work \
 && chmod 1777 /home/tpuctl /work \
 && apt-get update \
 && apt-get install --yes --no-install-recommends git libnss-unknown openssh-client rsync tini \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/tpuctl /opt/tpuctl
LABEL org.opencontainers.image.title=tpuctl \
      org.opencontainers.image.description="Bring a Google Cloud TPU from nothing to usable, and keep it there." \
      org.opencontainers.image.source=https://github.com/tpuctl/tpuctl \
      org.opencontainers.image.documentation=https://tpuctl.github.io/tpuctl/ \
      org.opencontainers.image.licenses=Apache-2.0
# Any user id finds tpuctl and a home that it can write to; the state, the keys and the cache are below.
ENV PATH=/opt/tpuctl/bin:$PATH HOME=/home/tpuctl
WORKDIR /work
USER 1000
ENTRYPOINT ["tini", "--", "tpuctl"]
CMD ["--help"]

FROM base AS sandbox
USER 0
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openssh-server openssh-sftp-server \
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
USER 1000
ENV TPUCTL_SANDBOX=1

FROM base AS tpuctl
