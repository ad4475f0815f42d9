//! Finds the word that was probably meant.

/// The candidate nearest to `word`, when it is near enough to be worth a hint: at most a third of the letters
/// changed, or one of the two contained in the other.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = normal(word);
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let other = normal(candidate);
            let distance = distance(&word, &other);
            let near = distance * 3 <= word.chars().count().max(other.chars().count());
            let inside = word.len() >= 4 && (other.contains(&word) || word.contains(&other));
            (near || inside).then_some((!near, distance, candidate))
        })
        .min()
        .map(|(_, _, candidate)| candidate)
}

/// Separators are mistaken for each other more often than letters.
fn normal(word: &str) -> String {
    word.chars().map(|c| if matches!(c, '_' | '-') { '.' } else { c.to_ascii_lowercase() }).collect()
}

/// Edits that turn one word into the other; a swap of neighbours counts as one.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 4] = ["num.partitions", "retention.ms", "retention.bytes", "journal.bytes"];

    #[test]
    fn a_slip_of_the_fingers_finds_the_key() {
        assert_eq!(nearest("num.partition", KEYS), Some("num.partitions"));
        assert_eq!(nearest("NUM_PARTITIONS", KEYS), Some("num.partitions"));
        assert_eq!(nearest("retnetion.ms", KEYS), Some("retention.ms"));
        assert_eq!(nearest("log.retention.ms", KEYS), Some("retention.ms"));
    }

    #[test]
    fn something_else_finds_nothing() {
        assert_eq!(nearest("zookeeper.connect", KEYS), None);
        assert_eq!(nearest("", KEYS), None);
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
