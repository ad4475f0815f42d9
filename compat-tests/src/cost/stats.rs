//! Numbers of samples.

/// Arithmetic mean; 0 of none.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Standard deviation as a part of the mean.
pub fn spread(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    if values.len() < 2 || mean == 0.0 { 0.0 } else { (squares / (values.len() - 1) as f64).sqrt() / mean }
}

/// The value that `share` per cent of all stay within; 0 of none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len().saturating_sub(1) as f64 * share / 100.0).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// Half of them, 99 of 100, all.
pub fn quantiles(values: &[f64]) -> String {
    let [half, most, all] = [50.0, 99.0, 100.0].map(|share| quantile(values, share));
    format!("{half:.2} {most:.2} {all:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_there() {
        let values: Vec<f64> = (1..=101).rev().map(f64::from).collect();
        assert_eq!(quantiles(&values), "51.00 100.00 101.00");
        assert_eq!(quantile(&[], 50.0), 0.0);
    }

    #[test]
    fn a_spread_is_a_part_of_the_mean() {
        assert_eq!((mean(&[9.0, 11.0]), spread(&[10.0, 10.0])), (10.0, 0.0));
        assert!((spread(&[9.0, 11.0]) - 0.1414).abs() < 0.001);
    }
}
