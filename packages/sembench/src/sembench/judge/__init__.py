"""An LLM as a judge of answers: faithfulness, and cold against warm. An opinion beside the measured figures."""

from sembench.judge.client import JudgeClient
from sembench.judge.opinions import KeptOpinions
from sembench.judge.run import judge_result

__all__ = ["JudgeClient", "KeptOpinions", "judge_result"]
