//! RE2J's language: what it takes, what that means, and what it refuses.

use super::re2j::translate;
use regex::Regex;

fn compile(pattern: &str) -> Option<Regex> {
    let translated = translate(pattern).ok()?;
    Regex::new(&format!("^(?:{translated})$")).ok().filter(|_| Regex::new(&translated).is_ok())
}

#[test]
fn what_re2j_takes_means_what_it_means_there() {
    for (pattern, matching, other) in [
        (r"\Qa.b\E", "a.b", "axb"),
        (r"\Qa.b\E.*", "a.bc", "axbc"),
        (r"\Qa.b", "a.b", "axb"),
        (r"\Qa\E\\E\Qb\E", r"a\Eb", "ab"),
        (r"x\Q\E", "x", ""),
        ("{", "{", ""),
        ("a{2", "a{2", "aa"),
        ("a{,3}", "a{,3}", "aa"),
        ("a{02}", "a{02}", "aa"),
        ("a{2}b}", "aab}", "ab}"),
        ("a{2,}", "aaa", "a"),
        ("a{1,2}?", "aa", "aaa"),
        ("a{1000}", &"a".repeat(1000), "a"),
        (r"\<a", "<a", "a"),
        (r"\b{start}a", "", "a"),
        (r"[[a-z]&&[b]]", "a&&b]", "b"),
        ("[]a]", "]", "b"),
        ("[^]a]", "b", "]"),
        ("[a-c-e]", "-", "d"),
        (r"[\w-]", "-", "."),
        (r"[\]\-]", "]", "a"),
        ("[[:alpha:]_]+", "ab_", "a1"),
        ("[[:^alpha:]]", "1", "a"),
        ("[[:x]", ":", "y"),
        (r"\d\w\s\D\W\S", "1a a-b", "aa a-b"),
        (r"\pN\p{Lu}\P{Lu}\p{^Lu}\p{Greek}\p{Any}", "1AbbαA", "1Abbaa"),
        (r"\x61\x{62}\143\0", "abc\0", "abc0"),
        (r"\141", "a", "1"),
        ("(?i)AB(?-i)C", "abC", "abc"),
        ("(?i:A)b", "ab", "aB"),
        ("(?)a(?:b)(?s).", "ab\n", "ab"),
        ("(?P<n>a)(?<m>b)", "ab", "a"),
        ("(?U)a+", "aa", "b"),
        (r"\Aa\z", "a", "b"),
        (r"\.\_\-\!", "._-!", "x_-!"),
        ("a b#", "a b#", "ab"),
        ("(a{10}){100}|c", "c", "a"),
        ("(a{100}){11}|c", "c", "a"),
        ("(a{500}){0}b", "b", "a"),
        ("a|", "", "b"),
        ("é+", "éé", "e"),
    ] {
        let Some(regex) = compile(pattern) else { panic!("{pattern}: refused") };
        // What is at the edge of words only asks whether it is taken.
        assert!(matching.is_empty() && !pattern.ends_with('|') || regex.is_match(matching), "{pattern}");
        assert!(!regex.is_match(other), "{pattern} matches {other}");
    }
}

#[test]
fn what_re2j_refuses_is_refused() {
    for pattern in [
        "x*+",
        "x**",
        "x{2}*",
        "x{2}{3}",
        "x+?+",
        "*a",
        "|*",
        "(*)",
        "{2}",
        "(?x)a",
        "(?u)a",
        "(?-u)a",
        "(?R)",
        "(?i",
        "(?--i)",
        "(?i-)",
        "(?-)",
        r"\u0061",
        r"\U0061",
        r"\p{Alpha}",
        r"\p{L",
        r"\p{Latn}",
        r"\p{lu}",
        r"\p{Letter}",
        r"\p{gc=L}",
        r"\p{}",
        r"\p",
        r"\pX",
        "a{1001}",
        "a{1,1001}",
        "a{9999999999}",
        "a{3,2}",
        r"(.)\1",
        r"\8",
        r"\C",
        r"\Z",
        r"\E",
        r"\h",
        r"\G",
        r"\x",
        r"\x6",
        r"\x{110000}",
        r"\x{}",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?>a)",
        "(?P=n)",
        "(?P<n>a)(?P<n>b)",
        "(?P<>a)",
        "(?P<n-m>a)",
        "(?P<n",
        "[",
        "[a",
        "[]",
        "[z-a]",
        r"[a-\d]",
        "[[:x:]]",
        r"[\b]",
        r"[\Qa\E]",
        "(",
        ")",
        "a)|(b",
        r"a\",
    ] {
        assert!(compile(pattern).is_none(), "{pattern} is taken");
    }
}

#[test]
fn no_text_panics() {
    let alphabet: Vec<char> = r"\a{1,0}[]^-:()?P<n>*+|QEpxLi".chars().collect();
    let mut seed = 1_u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push(alphabet[(seed >> 33) as usize % alphabet.len()]);
        }
        let _ = translate(&text);
    }
}
