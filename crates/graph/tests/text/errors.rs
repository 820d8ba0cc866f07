//! Errors for texts that cannot be parsed: the place, what is there, and what was expected.

use qkvault_graph::text;

#[test]
fn errors_have_place_found_and_expected() {
    for (given, error) in [
        (
            "",
            "line 1, column 1: found the end of the text, expected the field q, which is required: q: bf16 [1,32,512,128]",
        ),
        (
            "\n# nothing\n heads: 3",
            "line 3, column 2: found `heads`, expected a field: pass, q, k, v, o, mask, lengths, mask_mod, score_mod, score_mod_bprop, trust_score_mod_bprop, origins, sink, dropout, block_mask, outputs, padded_rows, invariant, draft_tree, fp8, d_o, d_q, d_k, d_v, d_o_half, d_sink or deterministic",
        ),
        ("q bf16", "line 1, column 3: found `bf16`, expected `:`"),
        ("q: b16 [1,2,3,4]", "line 1, column 4: found `b16`, expected an element type such as bf16, or dims"),
        ("q: [1,2,3,4]", "line 1, column 4: found dims, expected the element type of q before its dims"),
        ("q: f16 [1,2,3]", "line 1, column 14: found ']', expected `,`"),
        ("q: f16 [1,2,3,x]", "line 1, column 15: found `x`, expected an integer of 64 bits"),
        (
            "q: f16 [1,2,3,9999999999999999999]",
            "line 1, column 15: found `9999999999999999999`, expected an integer of 64 bits",
        ),
        (
            "q: f16 [1,2,3,4] bhds",
            "line 1, column 18: found `bhds`, expected varlen, paged, strides or a layout: bshd, sbhd, bhsd, bs3hd, bsh3d, sb3hd, sbh3d, b3hsd, bh3sd, bs2hd, bsh2d, sb2hd, sbh2d, b2hsd or bh2sd",
        ),
        ("q: f16 [1,2,3,4] varlen 7", "line 1, column 25: found `7`, expected tokens and the capacity of the buffer"),
        ("q: f16 [1,2,3,4] paged 7 of 8", "line 1, column 26: found `of`, expected x and the rows of a page"),
        (
            "q: f16 [1,2,3,4] paged 7 x 8 thd",
            "line 1, column 30: found `thd`, expected strides or a layout: nhd or hnd",
        ),
        (
            "q: f16 [1,4294967296,4294967296,8]",
            "line 1, column 8: found dims [1, 4294967296, 4294967296, 8], expected dims whose strides as bshd fit 63 bits",
        ),
        ("q: f16 [1,2,3,4]\nq: f16 [1,2,3,4]", "line 2, column 1: found `q` a second time, expected each field once"),
        ("q: f16 [1,2,3,4]\nmask: casual", "line 2, column 7: found `casual`, expected none, causal or band"),
        ("q: f16 [1,2,3,4]\nmask: causal bottom", "line 2, column 14: found `bottom`, expected the end of the line"),
        ("q: f16 [1,2,3,4]\nsink: maybe", "line 2, column 7: found `maybe`, expected yes or no"),
        ("q: f16 [1,2,3,4]\nsink:", "line 2, column 6: found the end of the text, expected yes or no"),
        (
            "q: f16 [1,2,3,4]\noutputs: stats lse",
            "line 2, column 16: found `lse`, expected none, or some of stats, max, sum_exp and no_amax",
        ),
        (
            "q: f16 [1,2,3,4]\ndropout: philox a lot",
            "line 2, column 17: found `a`, expected a probability of zeroing of at least 0 and below 1",
        ),
        (
            "q: f16 [1,2,3,4]\ndeterministic: yes",
            "line 2, column 1: found `deterministic` in a forward, expected a line `pass: backward` too",
        ),
        ("q: f16 [1,2,3,4]\nmask_mod: key <= query @", "line 2, column 24: found @, expected a name after '@'"),
        ("q: f16 [1,2,3,4]\nscore_mod: {\n  score *\n}", "line 4, column 1: found the end, expected an expression"),
        ("q: f16 [1,2,3,4]\nscore_mod: { score", "line 2, column 19: found the end of the text, expected `}`"),
        (
            "q: f16 [1,2,3,4]\nscore_mod: score + (key < 3)",
            "line 2, column 12: found an expression with problems (at add: the right operand of 'add' is bool, but float or int is needed; turn the truth value into a number with select(1.0, 0.0)), expected one that is well typed",
        ),
    ] {
        assert_eq!(text::parse(given).expect_err(given).to_string(), error, "{given}");
    }
}
