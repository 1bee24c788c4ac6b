"""One measurement of OpenVINO GenAI, in the virtual environment that openvino.py makes; prints JSON.

usage: openvino_genai_run.py MODEL CACHE THREADS PROMPT_TOKENS STEPS REPEATS
"""

import json
import sys

import numpy
import openvino
import openvino_genai

# What a cache type is called here: keys of 4 bits exist only per channel, or not at all, by version.
PRECISIONS = {"f16": {"KV_CACHE_PRECISION": "f16"}, "u8": {"KV_CACHE_PRECISION": "u8"},
              "u4": {"KEY_CACHE_PRECISION": "u4", "VALUE_CACHE_PRECISION": "u4"}}


def main():
    model, cache = sys.argv[1:3]
    threads, prompt_tokens, steps, repeats = map(int, sys.argv[3:])
    pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads, **PRECISIONS[cache])
    # Token ids, so that the depth is exact; any words do.
    ids = numpy.array([[100 + 7 * i % 5000 for i in range(prompt_tokens)]], dtype=numpy.int64)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = steps, True, False
    config.apply_chat_template = False
    rows = []
    for _ in range(repeats):
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
        metrics = pipeline.generate(inputs, config).perf_metrics
        rows.append({"first_token_s": metrics.get_ttft().mean / 1e3,
                     "tokens_per_s": 1e3 / metrics.get_tpot().mean if steps > 1 else None})
    print(json.dumps({"version": openvino_genai.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
