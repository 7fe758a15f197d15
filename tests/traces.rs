//! If this fails, a trace is read as another one, or a damaged file takes the process down.

use streamed_experts::{LayerId, Trace, TraceError};

fn ids(trace: &Trace) -> Vec<(u64, u32, Vec<u32>)> {
    let request = |r: streamed_experts::TraceRequest<'_>| {
        (r.forward, r.layer.0, r.experts.iter().map(|expert| expert.0).collect())
    };
    trace.requests().map(request).collect()
}

#[test]
fn a_line_for_each_token_is_read() {
    let trace =
        Trace::from_text("{\"tok\": 5, \"layers\": [[3, 1], [2]]}\n\n{\"tok\": 6, \"layers\": [[0], []]}\n")
            .unwrap();
    assert_eq!(ids(&trace), [(0, 0, vec![3, 1]), (0, 1, vec![2]), (1, 0, vec![0])]);
    assert_eq!(
        trace.layers().iter().map(|l| (l.layer, l.experts)).collect::<Vec<_>>(),
        [(LayerId(0), 4), (LayerId(1), 3)]
    );
    assert_eq!((trace.forwards(), trace.accesses(), trace.largest_request(), trace.len()), (2, 4, 2, 3));
}

#[test]
fn an_expert_that_several_rows_use_is_one_access() {
    let trace = Trace::from_text("{\"turn\":0,\"layer\":4,\"experts\":[7,2,7,9,2]}\n").unwrap();
    assert_eq!(ids(&trace), [(0, 4, vec![7, 2, 9])]);
}

#[test]
fn the_table_of_big_moe_on_edge_is_read_and_decoding_told_from_prefill() {
    let text = "# route_trace v1\n# model=x n_expert=128 n_expert_used=2\nturn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n\
        0,0,0,0,0,99,0.2,0,30\n0,1,1,0,1,4,0.2,0,30\n0,1,1,0,0,9,0.2,1,30\n0,1,1,2,0,1,0.2,1,30\n0,1,2,0,0,5,0.2,1,30\n";
    let trace = Trace::from_text(text).unwrap();
    assert_eq!(ids(&trace), [(0, 0, vec![9, 4]), (0, 2, vec![1]), (1, 0, vec![5])]);
    assert!(trace.layers().iter().all(|layer| layer.experts == 128));
    let prefill = text.replace(",1,1,", ",0,1,").replace(",1,2,", ",0,2,");
    assert_eq!(Trace::from_text(&prefill).unwrap().forwards(), 3, "prefill is read if there is nothing else");
}

#[test]
fn the_calls_of_mlx_bun_are_read() {
    let text = "{\"meta\":\"mlx-bun-expert-trace-v1\",\"note\":\"one record per router call\"}\n\
        {\"c\":0,\"l\":0,\"s\":[1,1,2],\"i\":[5,3]}\n{\"c\":1,\"l\":1,\"s\":[1,1,2],\"i\":[0,1]}\n{\"c\":2,\"l\":0,\"s\":[1,1,2],\"i\":[6,3]}\n";
    assert_eq!(
        ids(&Trace::from_text(text).unwrap()),
        [(0, 0, vec![5, 3]), (0, 1, vec![0, 1]), (1, 0, vec![6, 3])]
    );
    let other = text.replace("trace-v1", "trace-v2").replace("mlx-bun-expert", "other");
    assert!(Trace::from_text(&other).unwrap_err().to_string().contains("unknown kind"));
}

#[test]
fn a_last_line_that_was_cut_off_is_left_out_and_a_bad_one_is_not() {
    let whole = "{\"turn\":0,\"layer\":0,\"experts\":[1]}\n";
    for cut in 1..whole.len() - 2 {
        let torn = format!("{whole}{}", &whole[..cut]);
        assert_eq!(Trace::from_text(&torn).unwrap().len(), 1, "{torn}");
    }
    let error = Trace::from_text(&format!("{whole}{{\"turn\":0}}\n")).unwrap_err();
    assert!(error.to_string().starts_with("line 2: "), "{error}");
}

#[test]
fn nonsense_is_refused_by_line() {
    for (text, message) in [
        ("", "a trace without requests"),
        ("{\"tok\":0,\"layers\":[[]]}\n", "a trace without requests"),
        ("{\"tok\":0,\"layers\":[[70000]]}\n", "expert 70000 of layer 0"),
        ("{\"tok\":0,\"layers\":[[-1]]}\n", "not a line of a routing trace"),
        ("{\"tok\":0,\"layers\":[[1e99]]}\n", "not a line of a routing trace"),
        ("{\"turn\":0,\"layer\":4294967295,\"experts\":[1]}\n", "no model has more than"),
        ("a,b\n", "`a` is not a turn"),
        ("0,1,2\n", "no layer"),
        ("0,1,2,3,4,99999999999\n", "`99999999999` is not a expert"),
        ("0,1,2,3,4,70000\n", "line 1: expert 70000 of layer 3"),
        ("0,1,2,3,4,-5\n", "is not a expert"),
    ] {
        let error = Trace::from_text(text).unwrap_err().to_string();
        assert!(error.contains(message), "{text:?}: {error}");
    }
    let missing = Trace::read("/no/such/trace.jsonl").unwrap_err();
    assert!(matches!(missing, TraceError::Io { .. }) && missing.to_string().contains("/no/such/trace.jsonl"));
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"{\"tok\":0,\xff}\n{}\n").unwrap();
    let error = Trace::read(file.path()).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "line 1: not UTF-8");
}
