//! Graphs: nodes and edges, executable graphs, user objects.

use cuda_abi::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUcontext, CUgraph, CUgraphConditionalHandle, CUgraphEdgeData, CUgraphExec,
    CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo, CUgraphInstantiateResult, CUgraphNode, CUgraphNodeType,
    CUlaunchAttributeID, CUlaunchAttributeValue, CUresult, CUstream, CUuserObject, HostAddr,
};
use cuda_core::{Driver, GraphNode};

use crate::callback;
use crate::decode::{Core, Encode, In, Out, Text};
use crate::entry::{Answer, Refusal, refuse};

/// Most nodes or edges of one call.
const MOST: usize = 1 << 24;

/// `CUgraphEdgeData` as it is in memory; zero where none is given.
pub(crate) fn edge_data(data: In<CUgraphEdgeData>, index: usize) -> Result<[u8; 8], Refusal> {
    if data.is_null() {
        return Ok([0; 8]);
    }
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    let CUgraphEdgeData { from_port, to_port, kind, reserved } = unsafe { data.get_at(index) }?;
    if from_port > 2 || to_port != 0 || kind > 1 || reserved != [0; 5] {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok([from_port, to_port, kind, 0, 0, 0, 0, 0])
}

fn as_edge_data(data: [u8; 8]) -> CUgraphEdgeData {
    let [from_port, to_port, kind, reserved @ ..] = data;
    CUgraphEdgeData { from_port, to_port, kind, reserved }
}

/// Nodes that another depends on.
pub(crate) fn before(
    nodes: In<CUgraphNode>,
    data: In<CUgraphEdgeData>,
    count: usize,
) -> Result<Vec<(GraphNode, [u8; 8])>, Refusal> {
    if count > MOST {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let node = |index| {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let node = unsafe { nodes.get_at(index) }?;
        Ok((node.core(), edge_data(data, index)?))
    };
    (0..count).map(node).collect()
}

fn edges(
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    data: In<CUgraphEdgeData>,
    count: usize,
) -> Result<Vec<cuda_core::GraphEdge>, Refusal> {
    let to = before(to, data, count)?;
    let from = before(from, In::none(), count)?;
    Ok(from.into_iter().zip(to).map(|((from, _), (to, data))| (from, to, data)).collect())
}

/// Stores a list: how many there are, if only that is asked; else as many as there is room for, with null behind them.
fn list<const N: usize, T>(
    all: &[T],
    wanted: [bool; N],
    count: Out<usize>,
    mut set: impl FnMut(usize, Option<&T>),
) -> Answer {
    count.required()?;
    if !wanted.contains(&true) {
        count.set(all.len());
        return Ok(());
    }
    let room = count.input().get()?;
    if room > MOST {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    (0..room).for_each(|index| set(index, all.get(index)));
    count.set(all.len().min(room));
    Ok(())
}

/// Refuses to leave out what edges say beside their ends.
fn plain<'a>(mut data: impl Iterator<Item = &'a [u8; 8]>, asked: Out<CUgraphEdgeData>) -> Answer {
    let lossy = asked.is_null() && data.any(|data| *data != [0; 8]);
    if lossy { refuse(CUresult::CUDA_ERROR_LOSSY_QUERY) } else { Ok(()) }
}

pub(crate) fn create(driver: &Driver, graph: Out<CUgraph>, flags: u32) -> Answer {
    graph.required()?;
    graph.set(driver.graph_create(flags)?);
    Ok(())
}

pub(crate) fn destroy(driver: &Driver, graph: CUgraph) -> Answer {
    Ok(driver.graph_destroy(graph.core())?)
}

pub(crate) fn clone(driver: &Driver, clone: Out<CUgraph>, original: CUgraph) -> Answer {
    clone.required()?;
    clone.set(driver.graph_clone(original.core())?);
    Ok(())
}

pub(crate) fn conditional_handle_create(
    driver: &Driver,
    handle: Out<CUgraphConditionalHandle>,
    graph: CUgraph,
    context: CUcontext,
    default: u32,
    flags: u32,
) -> Answer {
    handle.required()?;
    handle.set(driver.graph_conditional_handle_create(graph.core(), context.core(), default, flags)?);
    Ok(())
}

pub(crate) fn get_id(driver: &Driver, graph: CUgraph, id: Out<u32>) -> Answer {
    id.required()?;
    id.set(driver.graph_get_id(graph.core())?);
    Ok(())
}

pub(crate) fn add_dependencies(
    driver: &Driver,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    count: usize,
) -> Answer {
    add_dependencies_v2(driver, graph, from, to, In::none(), count)
}

pub(crate) fn add_dependencies_v2(
    driver: &Driver,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    data: In<CUgraphEdgeData>,
    count: usize,
) -> Answer {
    Ok(driver.graph_add_dependencies(graph.core(), &edges(from, to, data, count)?)?)
}

pub(crate) fn remove_dependencies(
    driver: &Driver,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    count: usize,
) -> Answer {
    remove_dependencies_v2(driver, graph, from, to, In::none(), count)
}

pub(crate) fn remove_dependencies_v2(
    driver: &Driver,
    graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    data: In<CUgraphEdgeData>,
    count: usize,
) -> Answer {
    Ok(driver.graph_remove_dependencies(graph.core(), &edges(from, to, data, count)?)?)
}

fn nodes(all: &[GraphNode], nodes: Out<CUgraphNode>, count: Out<usize>) -> Answer {
    list(all, [!nodes.is_null()], count, |index, node| {
        // SAFETY: the C caller promised so much room (`decode`).
        unsafe { nodes.set_at(index, node.copied().unwrap_or_default()) }
    })
}

pub(crate) fn get_nodes(driver: &Driver, graph: CUgraph, out: Out<CUgraphNode>, count: Out<usize>) -> Answer {
    nodes(&driver.graph_get_nodes(graph.core())?, out, count)
}

pub(crate) fn get_root_nodes(driver: &Driver, graph: CUgraph, out: Out<CUgraphNode>, count: Out<usize>) -> Answer {
    nodes(&driver.graph_get_root_nodes(graph.core())?, out, count)
}

pub(crate) fn get_edges(
    driver: &Driver,
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    count: Out<usize>,
) -> Answer {
    get_edges_v2(driver, graph, from, to, Out::none(), count)
}

pub(crate) fn get_edges_v2(
    driver: &Driver,
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    data: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Answer {
    let all = driver.graph_get_edges(graph.core())?;
    if !from.is_null() || !to.is_null() {
        plain(all.iter().map(|edge| &edge.2), data)?;
    }
    list(&all, [!from.is_null(), !to.is_null(), !data.is_null()], count, |index, edge| {
        let (first, second, kind) = edge.copied().unwrap_or_default();
        // SAFETY: the C caller promised so much room (`decode`).
        unsafe { from.set_at(index, first) }
        // SAFETY: as above.
        unsafe { to.set_at(index, second) }
        // SAFETY: as above.
        unsafe { data.set_at(index, as_edge_data(kind)) }
    })
}

fn neighbours(
    all: &[(GraphNode, [u8; 8])],
    nodes: Out<CUgraphNode>,
    data: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Answer {
    if !nodes.is_null() {
        plain(all.iter().map(|edge| &edge.1), data)?;
    }
    list(all, [!nodes.is_null(), !data.is_null()], count, |index, edge| {
        let (node, kind) = edge.copied().unwrap_or_default();
        // SAFETY: the C caller promised so much room (`decode`).
        unsafe { nodes.set_at(index, node) }
        // SAFETY: as above.
        unsafe { data.set_at(index, as_edge_data(kind)) }
    })
}

pub(crate) fn node_get_dependencies(
    driver: &Driver,
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    count: Out<usize>,
) -> Answer {
    node_get_dependencies_v2(driver, node, nodes, Out::none(), count)
}

pub(crate) fn node_get_dependencies_v2(
    driver: &Driver,
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    data: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Answer {
    neighbours(&driver.graph_node_get_dependencies(node.core())?, nodes, data, count)
}

pub(crate) fn node_get_dependent_nodes(
    driver: &Driver,
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    count: Out<usize>,
) -> Answer {
    node_get_dependent_nodes_v2(driver, node, nodes, Out::none(), count)
}

pub(crate) fn node_get_dependent_nodes_v2(
    driver: &Driver,
    node: CUgraphNode,
    nodes: Out<CUgraphNode>,
    data: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Answer {
    neighbours(&driver.graph_node_get_dependent_nodes(node.core())?, nodes, data, count)
}

pub(crate) fn node_get_type(driver: &Driver, node: CUgraphNode, kind: Out<CUgraphNodeType>) -> Answer {
    kind.required()?;
    kind.set(driver.graph_node_get_type(node.core())?);
    Ok(())
}

pub(crate) fn node_get_containing_graph(driver: &Driver, node: CUgraphNode, graph: Out<CUgraph>) -> Answer {
    graph.required()?;
    graph.set(driver.graph_node_get_place(node.core())?.0);
    Ok(())
}

pub(crate) fn node_get_local_id(driver: &Driver, node: CUgraphNode, id: Out<u32>) -> Answer {
    id.required()?;
    id.set(driver.graph_node_get_place(node.core())?.1);
    Ok(())
}

/// A number for tools: the handle's, which no other node ever has.
pub(crate) fn node_get_tools_id(driver: &Driver, node: CUgraphNode, id: Out<u64>) -> Answer {
    id.required()?;
    driver.graph_node_get_place(node.core())?;
    id.set(node.0);
    Ok(())
}

pub(crate) fn node_find_in_clone(
    driver: &Driver,
    node: Out<CUgraphNode>,
    original: CUgraphNode,
    clone: CUgraph,
) -> Answer {
    node.required()?;
    node.set(driver.graph_node_find_in_clone(original.core(), clone.core())?);
    Ok(())
}

pub(crate) fn destroy_node(driver: &Driver, node: CUgraphNode) -> Answer {
    Ok(driver.graph_destroy_node(node.core())?)
}

pub(crate) fn kernel_node_get_attribute(
    driver: &Driver,
    node: CUgraphNode,
    attribute: CUlaunchAttributeID,
    value: Out<CUlaunchAttributeValue>,
) -> Answer {
    value.required()?;
    let bytes = driver.graph_kernel_node_get_attribute(node.core(), attribute.0)?;
    value.set(bytes.encode());
    Ok(())
}

pub(crate) fn kernel_node_set_attribute(
    driver: &Driver,
    node: CUgraphNode,
    attribute: CUlaunchAttributeID,
    value: In<CUlaunchAttributeValue>,
) -> Answer {
    let bytes: [u8; 64] = value.get()?.encode();
    Ok(driver.graph_kernel_node_set_attribute(node.core(), attribute.0, &bytes)?)
}

pub(crate) fn kernel_node_copy_attributes(driver: &Driver, dst: CUgraphNode, src: CUgraphNode) -> Answer {
    Ok(driver.graph_kernel_node_copy_attributes(dst.core(), src.core())?)
}

/// Writes the graph as text that `dot` draws; what the flags ask to be left out or in is for readers, and all is in.
pub(crate) fn debug_dot_print(driver: &Driver, graph: CUgraph, path: Text, _flags: u32) -> Answer {
    let text = driver.graph_debug_dot(graph.core())?;
    std::fs::write(path.get()?, text).map_err(|_| Refusal(CUresult::CUDA_ERROR_OPERATING_SYSTEM))
}

pub(crate) fn instantiate(
    driver: &Driver,
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    error_node: Out<CUgraphNode>,
    log: Out<u8>,
    log_bytes: usize,
) -> Answer {
    exec.required()?;
    let made = driver.graph_instantiate(graph.core(), 0);
    let text = match &made {
        Ok(_) => String::new(),
        Err((error, _)) => error.to_string(),
    };
    if !log.is_null() && log_bytes > 0 {
        // SAFETY: the C caller promised so much room (`decode`).
        unsafe { log.set_text(&text, i32::try_from(log_bytes).unwrap_or(i32::MAX)) }?;
    }
    match made {
        Ok(made) => exec.set(made),
        Err((error, outcome)) => {
            error_node.set(outcome.error_node);
            return Err(error.into());
        }
    }
    Ok(())
}

pub(crate) fn instantiate_with_flags(driver: &Driver, exec: Out<CUgraphExec>, graph: CUgraph, flags: u64) -> Answer {
    exec.required()?;
    exec.set(driver.graph_instantiate(graph.core(), flags).map_err(|(error, _)| error)?);
    Ok(())
}

/// Where it were to be uploaded is of no account: nothing is left to be done.
pub(crate) fn instantiate_with_params(
    driver: &Driver,
    _default: CUstream,
    exec: Out<CUgraphExec>,
    graph: CUgraph,
    params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> Answer {
    exec.required()?;
    let mut given = params.input().get()?;
    let made = driver.graph_instantiate(graph.core(), given.flags);
    let outcome = made.as_ref().err().map(|(_, outcome)| *outcome).unwrap_or_default();
    given.result_out = CUgraphInstantiateResult(outcome.result);
    given.h_err_node_out = CUgraphNode(outcome.error_node.0);
    params.set(given);
    exec.set(made.map_err(|(error, _)| error)?);
    Ok(())
}

pub(crate) fn exec_destroy(driver: &Driver, exec: CUgraphExec) -> Answer {
    Ok(driver.graph_exec_destroy(exec.core())?)
}

pub(crate) fn exec_get_flags(driver: &Driver, exec: CUgraphExec, flags: Out<u64>) -> Answer {
    flags.required()?;
    flags.set(driver.graph_exec_get_flags(exec.core())?);
    Ok(())
}

pub(crate) fn exec_get_id(driver: &Driver, exec: CUgraphExec, id: Out<u32>) -> Answer {
    id.required()?;
    id.set(driver.graph_exec_get_id(exec.core())?);
    Ok(())
}

pub(crate) fn exec_update(
    driver: &Driver,
    exec: CUgraphExec,
    graph: CUgraph,
    error_node: Out<CUgraphNode>,
    result: Out<CUgraphExecUpdateResult>,
) -> Answer {
    let updated = driver.graph_exec_update(exec.core(), graph.core());
    let outcome = updated.as_ref().err().map(|(_, outcome)| *outcome).unwrap_or_default();
    error_node.set(outcome.error_node);
    result.set(CUgraphExecUpdateResult(outcome.result));
    Ok(updated.map_err(|(error, _)| error)?)
}

pub(crate) fn exec_update_v2(
    driver: &Driver,
    exec: CUgraphExec,
    graph: CUgraph,
    info: Out<CUgraphExecUpdateResultInfo>,
) -> Answer {
    let updated = driver.graph_exec_update(exec.core(), graph.core());
    let outcome = updated.as_ref().err().map(|(_, outcome)| *outcome).unwrap_or_default();
    info.set(CUgraphExecUpdateResultInfo {
        result: CUgraphExecUpdateResult(outcome.result),
        error_node: CUgraphNode(outcome.error_node.0),
        error_from_node: CUgraphNode(outcome.error_from_node.0),
    });
    Ok(updated.map_err(|(error, _)| error)?)
}

pub(crate) fn upload(driver: &Driver, exec: CUgraphExec, stream: CUstream) -> Answer {
    Ok(driver.graph_upload(exec.core(), stream.core())?)
}

pub(crate) fn launch(driver: &Driver, exec: CUgraphExec, stream: CUstream) -> Answer {
    Ok(driver.graph_launch(exec.core(), stream.core())?)
}

pub(crate) fn node_get_enabled(driver: &Driver, exec: CUgraphExec, node: CUgraphNode, enabled: Out<u32>) -> Answer {
    enabled.required()?;
    enabled.set(u32::from(driver.graph_node_get_enabled(exec.core(), node.core())?));
    Ok(())
}

pub(crate) fn node_set_enabled(driver: &Driver, exec: CUgraphExec, node: CUgraphNode, enabled: u32) -> Answer {
    Ok(driver.graph_node_set_enabled(exec.core(), node.core(), enabled != 0)?)
}

pub(crate) fn user_object_create(
    driver: &Driver,
    object: Out<CUuserObject>,
    data: HostAddr,
    destroy: HostAddr,
    references: u32,
    flags: u32,
) -> Answer {
    object.required()?;
    object.set(driver.user_object_create(callback::repeated(destroy, data)?, references, flags)?);
    Ok(())
}

pub(crate) fn user_object_retain(driver: &Driver, object: CUuserObject, count: u32) -> Answer {
    Ok(driver.user_object_retain(object.core(), count)?)
}

pub(crate) fn user_object_release(driver: &Driver, object: CUuserObject, count: u32) -> Answer {
    Ok(driver.user_object_release(object.core(), count)?)
}

pub(crate) fn retain_user_object(
    driver: &Driver,
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> Answer {
    Ok(driver.graph_retain_user_object(graph.core(), object.core(), count, flags)?)
}

pub(crate) fn release_user_object(driver: &Driver, graph: CUgraph, object: CUuserObject, count: u32) -> Answer {
    Ok(driver.graph_release_user_object(graph.core(), object.core(), count)?)
}
