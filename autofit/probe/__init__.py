"""The probe of fit boundaries, both sides proven by launches; nothing here measures speed."""
