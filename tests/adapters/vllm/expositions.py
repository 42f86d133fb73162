"""Expositions of vLLM servers: excerpts of real ones, in the original order."""

from __future__ import annotations

PREAMBLE = """\
# HELP process_open_fds Number of open file descriptors.
# TYPE process_open_fds gauge
process_open_fds 61.0
# HELP http_requests_total Total number of requests by method, status and handler.
# TYPE http_requests_total counter
http_requests_total{handler="/v1/models",method="GET",status="2xx"} 4.0
"""

BASE = (
    PREAMBLE
    + """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="base"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="base"} 2.0
# HELP vllm:num_requests_waiting_by_reason Number of waiting requests by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="base",reason="capacity"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="base",reason="deferred"} 1.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="base"} 0.125
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="base"} 1206.0
# HELP vllm:prefix_cache_queries_created Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="base"} 1.795275024837467e+09
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="base"} 768.0
# HELP vllm:external_prefix_cache_queries_total External prefix cache queries from KV connector.
# TYPE vllm:external_prefix_cache_queries_total counter
vllm:external_prefix_cache_queries_total{engine="0",model_name="base"} 9.0
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="base"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="base"} 3.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="base"} 3.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="base"} 0.0625
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="base"} 900.0
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="base"} 42.0
# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="base"} 4.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="base"} 17.0
vllm:iteration_tokens_total_count{engine="0",model_name="base"} 17.0
vllm:iteration_tokens_total_sum{engine="0",model_name="base"} 480.0
# HELP vllm:inter_token_latency_seconds Histogram of inter-token latency in seconds.
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="base"} 0.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="base"} 39.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="base"} 39.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="base"} 1.5
# HELP vllm:request_prefill_time_seconds Histogram of time spent in PREFILL phase for request.
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{engine="0",le="0.3",model_name="base"} 2.0
vllm:request_prefill_time_seconds_bucket{engine="0",le="+Inf",model_name="base"} 2.0
vllm:request_prefill_time_seconds_count{engine="0",model_name="base"} 2.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="base"} 0.375
# HELP vllm:request_prefill_kv_computed_tokens Histogram of new KV tokens computed in prefill.
# TYPE vllm:request_prefill_kv_computed_tokens histogram
vllm:request_prefill_kv_computed_tokens_bucket{engine="0",le="1.0",model_name="base"} 0.0
vllm:request_prefill_kv_computed_tokens_bucket{engine="0",le="+Inf",model_name="base"} 2.0
vllm:request_prefill_kv_computed_tokens_count{engine="0",model_name="base"} 2.0
vllm:request_prefill_kv_computed_tokens_sum{engine="0",model_name="base"} 374.0
"""
)
"""Load metrics of vLLM 0.32 without LoRA."""

LORA = """\
# HELP vllm:lora_requests_info Running stats on lora requests.
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters="a"} 1.795275033697358e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters="a,b"} 1.795275024837467e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="c,d",waiting_lora_adapters="d"} 1.795275033753160e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 1.795275033753159e+09
"""  # noqa: E501
"""All sets of adapters ever used, of vLLM 0.32, in no order. The last but one is the newest."""

CACHE = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{_block_size_resolved="True",block_size="32",cache_dtype="auto",cache_hit_alignment_tokens="None",effective_attention_block_size="16",enable_mamba_shared_prefix_checkpoint="False",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",hash_block_size="None",is_attention_free="False",kv_cache_dtype_skip_layers="[]",kv_cache_layout="None",kv_cache_max_concurrency="4.0",kv_cache_memory_bytes="1073741824",kv_cache_size_tokens="16384",kv_offloading_backend="native",kv_offloading_size="None",kv_sharing_fast_prefill="False",mamba_block_size="None",mamba_cache_dtype="auto",mamba_cache_mode="none",mamba_page_size_padded="None",mamba_ssm_cache_dtype="float32",num_cpu_blocks="None",num_gpu_blocks="512",num_gpu_blocks_override="512",prefix_cache_retention_interval="0",prefix_caching_hash_algo="sha256",prefix_match_unit="None",replayssm_buffer_len="16",skip_page_size_padded="None",sliding_window="None",swa_bounded_replay="True",use_kda_recoverssm="False",use_replayssm="False",user_specified_block_size="True"} 1.0
"""  # noqa: E501
"""Cache configuration of vLLM 0.32, with all labels."""

OLD = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_cpu_blocks="2048",num_gpu_blocks="27862",num_gpu_blocks_override="None",sliding_window="None"} 1.0
# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="meta-llama/Llama-3.1-8B"} 1.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="meta-llama/Llama-3.1-8B"} 0.0
# HELP vllm:lora_requests_info Running stats on lora requests.
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql, law",waiting_lora_adapters="med"} 1.73e+09
# HELP vllm:gpu_cache_usage_perc GPU KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="meta-llama/Llama-3.1-8B"} 0.0003
# HELP vllm:cpu_cache_usage_perc CPU KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:cpu_cache_usage_perc gauge
vllm:cpu_cache_usage_perc{model_name="meta-llama/Llama-3.1-8B"} 0.5
"""  # noqa: E501
"""Metrics of the first releases: no engine label, and a separate name for the GPU cache."""

ENGINES = """\
vllm:num_requests_running{engine="0",model_name="base"} 3.0
vllm:num_requests_running{engine="1",model_name="base"} 1.0
vllm:num_requests_waiting{engine="0",model_name="base"} 2.0
vllm:num_requests_waiting{engine="1",model_name="base"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="base"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="base"} 0.25
vllm:cache_config_info{block_size="32",engine="0",kv_cache_size_tokens="16384",num_gpu_blocks="1024"} 1.0
vllm:cache_config_info{block_size="32",engine="1",kv_cache_size_tokens="16384",num_gpu_blocks="1024"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="base"} 500.0
vllm:prefix_cache_queries_total{engine="1",model_name="base"} 700.0
vllm:prefix_cache_hits_total{engine="0",model_name="base"} 0.0
vllm:prefix_cache_hits_total{engine="1",model_name="base"} 64.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="base"} 2.0
vllm:time_to_first_token_seconds_count{engine="1",model_name="base"} 3.0
"""  # noqa: E501
"""Metrics of two data parallel engines behind one port. Each has 512 blocks."""
