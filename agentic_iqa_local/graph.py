"""The graph: planner → executor → summarizer, and back to the planner while the evidence does not suffice."""

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langsmith import tracing_context

from agentic_iqa_local.config import check_box, check_choices, check_limit
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.images.reading import ImageError
from agentic_iqa_local.nodes.executor import executor_node
from agentic_iqa_local.nodes.planner import planner_node
from agentic_iqa_local.nodes.query import choices_in
from agentic_iqa_local.nodes.replanning import DEFAULT_MAX_REPLAN_ITERATIONS, replan_limit
from agentic_iqa_local.nodes.summarizer import summarizer_node
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.services import Observer, Services, load_services
from agentic_iqa_local.state import AgenticIQAState

logger = logging.getLogger(__name__)

Graph = CompiledStateGraph[AgenticIQAState, Any]


def decide_next_node(state: AgenticIQAState) -> Literal["planner", "__end__"]:
    """Conditional edge after the Summarizer: "planner" if a replan is needed and iterations < max, else "__end__"."""
    result = None if state.get("error") else state.get("summarizer_result")
    need_replan, reason = (result.need_replan, result.replan_reason) if result else (False, None)
    iteration, limit = state.get("iteration_count", 0), replan_limit(state)
    decision = "planner" if need_replan and iteration < limit else "__end__"
    told = "need_replan=%s, iteration_count=%d, max_replan_iterations=%d, decision=%s"
    logger.info(told, need_replan, iteration, limit, decision)
    if decision == "planner":
        logger.info("Replanning triggered: %s", reason)
        logger.info("Iteration %d/%d", iteration, limit)
    elif need_replan:
        logger.warning("Max replanning iterations (%d) reached", limit)
        logger.warning("Continuing with current evidence despite need_replan=true")
        if iteration > 1:
            logger.warning(
                "All %d passes asked for a replan: a potential logic issue in the Summarizer",
                iteration,
            )
    return decision


def _observed(role: str, node: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The node, whose beginning and end the assessment's observer is told. What it raises becomes an error of
    the state, but for a lack of memory, with which a batch knows what to do."""

    def run(
        state: AgenticIQAState,
        config: RunnableConfig | None = None,
        runtime: Runtime[Any] | None = None,
    ):
        observer = runtime.context.observer if runtime and runtime.context else Observer()
        count = state.get("iteration_count", 0) + 1
        observer.step(role, "started", count)
        try:
            changes = node(state, config, runtime)
        except MemoryError:
            raise
        except Exception as error:
            logger.exception("%s failed", role.capitalize())
            changes = {"error": one_line(f"{role.capitalize()}: {type(error).__name__}: {error}")}
        observer.step(role, "finished", count)
        return changes

    return run


@functools.cache
def build_graph(with_summarizer: bool = True) -> Graph:
    """The graph, compiled once. Without the Summarizer it ends after the Executor and never replans."""
    nodes = {"planner": planner_node, "executor": executor_node}
    nodes |= {"summarizer": summarizer_node} if with_summarizer else {}
    graph = StateGraph[AgenticIQAState, Any](AgenticIQAState)
    graph.add_sequence([(role, _observed(role, node)) for role, node in nodes.items()])
    graph.add_edge(START, "planner")
    if with_summarizer:
        graph.add_conditional_edges(
            "summarizer", decide_next_node, {"planner": "planner", "__end__": END}
        )
    else:
        graph.add_edge("executor", END)
    return graph.compile()


def run_graph(
    state: AgenticIQAState, bench: Workbench, graph: Graph | None = None
) -> AgenticIQAState:
    """Runs the graph on a workbench and returns the final state."""
    config: RunnableConfig = {
        "recursion_limit": 3 * (replan_limit(state) + 2)
    }  # three nodes a round, and two rounds
    with tracing_context(
        enabled=False
    ):  # LangChain would follow environment variables to a tracing server
        final: Any = (graph or build_graph()).invoke(state, config, context=bench)
    return final | {"failed_tries": list(bench.models.failed_tries)}


def initial_state(
    query: str,
    image_path: str,
    reference_path: str | None = None,
    max_replan_iterations: int | None = DEFAULT_MAX_REPLAN_ITERATIONS,
    choices: Sequence[str] | None = None,
    box: Any = None,
) -> AgenticIQAState:
    """The state that a run starts from. A limit of None means the default; 0 stays 0. Without `choices` those
    that the query itself lists are taken. `box` as for `config.check_box`."""
    limit = (
        DEFAULT_MAX_REPLAN_ITERATIONS if max_replan_iterations is None else max_replan_iterations
    )
    check_limit(limit)
    check_choices(choices)
    state = AgenticIQAState(
        query=query, image_path=str(image_path), iteration_count=0, replan_history=[]
    )
    state["max_replan_iterations"] = limit
    if reference_path is not None:
        state["reference_path"] = str(reference_path)
    if choices := choices_in(query) if choices is None else choices:
        state["choices"] = list(choices)
    if box is not None:
        state["box"] = check_box(box)
    return state


def run_pipeline(
    query: str,
    image_path: str,
    reference_path: str | None = None,
    max_replan_iterations: int | None = None,
    choices: Sequence[str] | None = None,
    *,
    box: Any = None,
    services: Services | None = None,
) -> AgenticIQAState:
    """Assesses one image and returns the final state; a failure is in `state["error"]` (the Executor's in
    `executor_evidence.error`, the Summarizer's in `summarizer_result.error`), not an exception, except MemoryError.

    `max_replan_iterations` n allows n − 1 replans: the Summarizer counts its request before the edge compares, so 0 and
    1 never replan and 2 replans at most once. None is the configuration's limit, which is 2 unless it says otherwise.
    `box` says where the regions of the query lie, as for `config.check_box`.
    """
    services = services or load_services()
    limit = (
        services.settings.max_replan_iterations
        if max_replan_iterations is None
        else max_replan_iterations
    )
    state = initial_state(query, image_path, reference_path, limit, choices, box)
    try:
        bench = Workbench(services, state["image_path"], state.get("reference_path"))
    except ImageError as error:
        return {**state, "error": str(error)}
    with closing(bench):
        return run_graph(state, bench)


def visualize_graph() -> str:
    """A Mermaid diagram of the graph; its edge back to the planner shows the check against max_replan_iterations."""
    return """graph TD
    START([START]) --> planner[Planner]
    planner --> executor[Executor]
    executor --> summarizer[Summarizer]
    summarizer -->|need_replan=true & iter<max| planner
    summarizer -->|need_replan=false or iter>=max| END([END])"""
