# A stand-in for a vLLM server. It is not part of the sidecar's image.
FROM python:3.13.16-slim-trixie
COPY pyproject.toml README.md LICENSE /src/
COPY envoy /src/envoy
COPY extproc /src/extproc
RUN pip install --no-cache-dir --disable-pip-version-check /src
USER 65532:65532
EXPOSE 8000
ENTRYPOINT ["python", "-m", "extproc.lab.stand_ins.vllm"]
